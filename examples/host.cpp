// A program in C++ that computes a network, without Python:
//
//   eqfuse export RUN folder
//   g++ -O2 -std=c++17 -Ifolder examples/host.cpp -o host -ldl -pthread
//   ./host folder < structure
//
// The structure is three rows of lattice vectors (A) of a box that is periodic in all directions, then a row
// `symbol x y z` of each atom. It prints the energy (eV), the virial (eV) and the forces (eV/A).
#include <cstdio>
#include <iostream>

#include "eqfuse_engine.hpp"

using Vector = std::array<double, 3>;

double dot(const Vector &a, const Vector &b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
Vector cross(const Vector &a, const Vector &b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

int main(int argc, char **argv) try {
  if (argc != 2) eqfuse::fail("usage: host FOLDER < STRUCTURE");
  eqfuse::keep_memory();  // large steps are faster
  eqfuse::Engine engine(argv[1]);
  std::array<Vector, 3> cell;
  std::vector<int> numbers;
  std::vector<Vector> positions;
  for (auto &row : cell)
    if (!(std::cin >> row[0] >> row[1] >> row[2])) eqfuse::fail("the structure begins with nine numbers, the lattice vectors");
  Vector x;
  for (std::string symbol; std::cin >> symbol;) {
    if (!(std::cin >> x[0] >> x[1] >> x[2])) eqfuse::fail("the row of atom " + std::to_string(numbers.size()) + " is not `symbol x y z`");
    if (!engine.elements.count(symbol)) eqfuse::fail("the network does not know " + symbol);
    numbers.push_back(engine.elements[symbol]), positions.push_back(x);
  }

  // how many images of the cell have atoms within the cutoff: by its height, and how far its atoms lie apart
  int most[3];
  for (int k = 0; k < 3; ++k) {
    Vector normal = cross(cell[(k + 1) % 3], cell[(k + 2) % 3]);
    const double area = std::sqrt(dot(normal, normal)), height = std::abs(dot(cell[k], normal)) / area;
    if (!(height > 0)) eqfuse::fail("the lattice vectors span no volume; give a molecule a large box");
    double low = 0, high = 0;  // of the atoms from the first, along the normal
    for (auto &p : positions) {
      const double along = (dot(p, normal) - dot(positions[0], normal)) / area;
      low = std::min(low, along), high = std::max(high, along);
    }
    most[k] = int((engine.cutoff + high - low) / height);
  }

  // all ordered pairs within the cutoff; an engine with many atoms takes them from its own list
  std::vector<int> senders, receivers;
  std::vector<double> vectors;
  for (int a = -most[0]; a <= most[0]; ++a) for (int b = -most[1]; b <= most[1]; ++b) for (int c = -most[2]; c <= most[2]; ++c)
    for (size_t i = 0; i < positions.size(); ++i) for (size_t j = 0; j < positions.size(); ++j) {
      Vector d;
      for (int k = 0; k < 3; ++k) d[k] = positions[j][k] + a * cell[0][k] + b * cell[1][k] + c * cell[2][k] - positions[i][k];
      if ((i == j && !a && !b && !c) || dot(d, d) >= engine.cutoff * engine.cutoff) continue;
      receivers.push_back(i), senders.push_back(j), vectors.insert(vectors.end(), d.begin(), d.end());
    }

  engine.compute(numbers, numbers.size(), senders, receivers, vectors);
  std::printf("energy %.17g\nvirial", engine.energy);
  for (double w : engine.virial) std::printf(" %.17g", w);
  for (size_t i = 0; i < numbers.size(); ++i)
    std::printf("\nforce %.17g %.17g %.17g", engine.forces[3 * i], engine.forces[3 * i + 1], engine.forces[3 * i + 2]);
  std::printf("\n");
} catch (const std::exception &error) {
  std::fprintf(stderr, "host: %s\n", error.what());
  return 1;
}
