"""`python -m stairwell`, and `torchrun --nproc-per-node 2 -m stairwell train ...` for several processes."""

from stairwell.cli import main

if __name__ == "__main__":
    main()
