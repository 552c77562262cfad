// twice FOLDER COPY: a folder and its copy in one process, on a pair of atoms 2.5 A apart.
#include <cstdio>

#include "eqfuse_engine.hpp"

int main(int, char **argv) try {
  eqfuse::Engine one(argv[1]), same(argv[1]), copy(argv[2]);
  for (auto *engine : {&one, &same, &copy, &one}) {
    engine->compute({13, 29}, 2, {1, 0}, {0, 1}, {2.5, 0, 0, -2.5, 0, 0});
    std::printf("%.17g %.17g\n", engine->energy, engine->forces[0]);
  }
  for (auto bad : {0, 1, 2, 3, 4, 5}) try {
      const int owned = bad == 1 ? 3 : bad < 4 ? 2 : 1;
      if (bad == 5) one.exchange = [](const eqfuse::Engine::Rows &, bool) {};
      one.compute({13, bad == 0 ? 79 : 29}, owned, {1, bad == 2 ? 2 : 0}, {0, bad != 4}, std::vector<double>(bad == 3 ? 5 : 6, 2.0));
      std::printf("nothing was refused\n");
    } catch (const std::runtime_error &error) {
      std::printf("%s\n", error.what());
    }
} catch (const std::exception &error) {
  return std::printf("%s\n", error.what()), 1;
}
