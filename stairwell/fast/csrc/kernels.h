// The loops of one instruction set as a table of functions.
#include "vector.h"
#include "tile.h"
#include "forward.h"
#include "backward.h"
#include "climb.h"
#include "scores.h"
#include "delta.h"
#include "decode.h"

template <class real>
static void run_forward(const Plan<real>& plan, i64 first, i64 last, real* work) {
  Forward<real>(plan, first, last, work).run();
}

template <class real>
static void run_backward(const Plan<real>& plan, i64 first, i64 last, real* work) {
  Backward<real>(plan, first, last, work).run();
}

template <class real>
static void run_climb(const Plan<real>& plan, const Stairs<real>& stairs, i64 first, i64 last, real* work) {
  Climb<real>(plan, stairs, first, last, work).run();
}

template <class real>
static void run_descend(const Plan<real>& plan, const Stairs<real>& stairs, i64 first, i64 last, real* work) {
  Descend<real>(plan, stairs, first, last, work).run();
}

template <class real>
static const Kernels<real>& kernels() {
  static const Kernels<real> table = {
      NR<real>,        Tile<real>::workspace, run_forward<real>, run_backward<real>, climb_workspace<real>,
      run_climb<real>, run_descend<real>,     log_sum<real>,     highest<real>,      delta_workspace<real>,
      run_delta<real>, decode_scratch<real>,  run_decode<real>};
  return table;
}
