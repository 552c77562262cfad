// german FOLDER: a program with Germany's numbers, on a pair of atoms 2.5 A, NaN and infinitely far apart.
#include <cstdio>

#include "eqfuse_engine.hpp"

struct German : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

int main(int, char **argv) {
  std::locale::global(std::locale(std::locale(), new German));
  eqfuse::Engine engine(argv[1]);
  for (double x : {2.5, double(NAN), double(INFINITY)}) try {
      engine.compute({13, 29}, 2, {1, 0}, {0, 1}, {x, 0, 0, -x, 0, 0});
      std::printf("%.17g\n", engine.energy);
    } catch (const std::exception &error) {
      std::printf("%s\n", error.what());
    }
}
