// The table of kernels of one instruction set.
#include "vector.h"
#include "tile.h"
#include "forward.h"
#include "backward.h"
#include "staircase.h"
#include "scores.h"
#include "delta.h"
#include "decode.h"

template <class real>
static void run_forward(const Plan<real>& plan, i64 first, i64 last, real* work, const Team& team) {
  Forward<real>(plan, first, last, work, team).run();
}

template <class real>
static void run_backward(const Plan<real>& plan, i64 first, i64 last, real* work, const Team& team) {
  Backward<real>(plan, first, last, work, team).run();
}

template <class real>
static void run_staircase_forward(const Plan<real>& plan, const StaircasePlan<real>& staircase, i64 first, i64 last,
                                  real* work) {
  StaircaseForward<real>(plan, staircase, first, last, work).run();
}

template <class real>
static void run_staircase_backward(const Plan<real>& plan, const StaircasePlan<real>& staircase, i64 first, i64 last,
                                   real* work) {
  StaircaseBackward<real>(plan, staircase, first, last, work).run();
}

template <class real>
static const Kernels<real>& kernels() {
  static const Kernels<real> table = {
      PANEL<real>,
      Tile<real>::workspace,
      run_forward<real>,
      run_backward<real>,
      staircase_workspace<real>,
      run_staircase_forward<real>,
      run_staircase_backward<real>,
      logsumexp<real>,
      topk<real>,
      delta_workspace<real>,
      run_delta<real>,
      decode_scratch<real>,
      run_decode<real>,
  };
  return table;
}
