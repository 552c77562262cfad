// Prints the memory of each cgroup: its total, and what is left.
#include <cstdio>
#include "eqfuse_engine.hpp"
int main(int, char **argv) {
  for (int k = 1; k < 4; ++k) {
    const auto [total, left] = eqfuse::memory(argv[k]);
    std::printf("%.0f %.0f\n", total, left);
  }
}
