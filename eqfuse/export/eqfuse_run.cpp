// A program without Python that runs a folder of `eqfuse export for=pjrt`: see usage().
//
//   g++ -O2 -std=c++17 eqfuse_run.cpp -o eqfuse_run -ldl -pthread
#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "eqfuse_engine.hpp"

using eqfuse::fail;
using Vector = std::array<double, 3>;
using Cell = std::array<Vector, 3>;

static double dot(const Vector &a, const Vector &b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
static Vector cross(const Vector &a, const Vector &b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

struct Structure {
  std::vector<int> numbers;
  std::vector<Vector> positions;  // A
  Cell cell{};                    // rows are lattice vectors
  std::array<bool, 3> pbc{};
};

// Read the first frame of an extended XYZ file, whose columns begin with species and positions.
static Structure read_xyz(const std::string &name, const eqfuse::Engine &engine) {
  std::istringstream file(eqfuse::read_file(name));
  std::string line, comment, symbol;
  int count = -1;
  if (!std::getline(file, line) || (count = std::atoi(line.c_str())) < 0) fail(name + " is not an XYZ file");
  std::getline(file, comment);
  Structure s;
  auto quoted = [&](const std::string &key) {
    auto at = comment.find(key + "=\"");
    if (at == std::string::npos) return std::string();
    at += key.size() + 2;
    return comment.substr(at, comment.find('"', at) - at);
  };
  std::istringstream lattice(quoted("Lattice")), periodic(quoted("pbc"));
  const bool has_cell = !lattice.str().empty();
  for (auto &row : s.cell)
    for (double &x : row) lattice >> x;
  if (has_cell && !lattice) fail(name + ": the Lattice is not nine numbers");
  for (bool &is : s.pbc) is = (periodic >> symbol) ? symbol == "T" : has_cell;
  for (int k = 0; k < count; ++k) {
    Vector x;
    if (!(file >> symbol >> x[0] >> x[1] >> x[2])) fail(name + " ends at atom " + std::to_string(k) + " of " + std::to_string(count));
    std::getline(file, line);
    auto element = engine.elements.find(symbol);
    if (element == engine.elements.end()) {
      std::string known;
      for (auto &one : engine.elements) known += " " + one.first;
      fail("the network does not know " + symbol + "; it knows" + known);
    }
    s.numbers.push_back(element->second);
    s.positions.push_back(x);
  }
  return s;
}

// Points of a structure: its atoms, wrapped into the cell, then images within `reach` of the cell.
struct Points {
  std::vector<Vector> at, fraction;
  std::vector<int> atom;
  Vector heights;
};

static Points images(const Structure &s, double reach) {
  Cell cell = s.cell;
  std::vector<Vector> basis;  // orthonormal, of the vectors that are there
  auto residual = [&](Vector v) {
    for (auto &b : basis) { double d = dot(v, b); for (int i = 0; i < 3; ++i) v[i] -= d * b[i]; }
    return v;
  };
  auto add = [&](Vector v) { double l = std::sqrt(dot(v, v)); for (double &x : v) x /= l; basis.push_back(v); return v; };
  for (int k = 0; k < 3; ++k) {
    bool there = s.pbc[k];
    Vector v = residual(cell[k]);
    if (!there) continue;
    if (dot(v, v) < 1e-12) fail("the cell has no lattice vector in a periodic direction, or no volume");
    add(v);
  }
  for (int k = 0; k < 3; ++k)
    if (!s.pbc[k]) {  // any vector that stands on the others
      Vector best{};
      for (int axis = 0; axis < 3; ++axis) { Vector e{}; e[axis] = 1; e = residual(e); if (dot(e, e) > dot(best, best) + 1e-9) best = e; }
      cell[k] = add(best);
    }
  const double volume = dot(cell[0], cross(cell[1], cell[2]));
  Cell inverse;  // rows are the reciprocal vectors
  Points p;
  std::array<int, 3> most{};
  for (int k = 0; k < 3; ++k) {
    inverse[k] = cross(cell[(k + 1) % 3], cell[(k + 2) % 3]);
    for (double &x : inverse[k]) x /= volume;
    p.heights[k] = 1 / std::sqrt(dot(inverse[k], inverse[k]));
    if (s.pbc[k]) most[k] = std::ceil(reach / p.heights[k]) + 0;
  }
  auto place = [&](const Vector &f) {
    Vector x{};
    for (int k = 0; k < 3; ++k) for (int i = 0; i < 3; ++i) x[i] += f[k] * cell[k][i];
    return x;
  };
  std::vector<Vector> first;
  for (auto &x : s.positions) {
    Vector f;
    for (int k = 0; k < 3; ++k) { f[k] = dot(x, inverse[k]); if (s.pbc[k]) f[k] -= std::floor(f[k]); }
    first.push_back(f);
  }
  for (int pass = 0; pass < 2; ++pass)  // the atoms come before the images
    for (int a = -most[0]; a <= most[0]; ++a) for (int b = -most[1]; b <= most[1]; ++b) for (int c = -most[2]; c <= most[2]; ++c) {
      const int shift[3] = {a, b, c};
      if ((a == 0 && b == 0 && c == 0) != (pass == 0)) continue;
      for (size_t n = 0; n < first.size(); ++n) {
        Vector f = first[n];
        bool near = true;
        for (int k = 0; k < 3; ++k) {
          f[k] += shift[k];
          if (s.pbc[k]) near = near && f[k] * p.heights[k] >= -reach && (f[k] - 1) * p.heights[k] <= reach;
        }
        if (!near && pass) continue;
        p.fraction.push_back(f), p.at.push_back(place(f)), p.atom.push_back(n);
      }
    }
  return p;
}

struct Edges {
  std::vector<int> senders, receivers;
  std::vector<double> vectors;
};

// All ordered pairs of points within the cutoff whose receivers are among the first `centres`.
static Edges pairs(const std::vector<Vector> &x, size_t centres, double cutoff) {
  Edges e;
  if (x.empty()) return e;
  Vector low = x[0], high = x[0];
  for (auto &p : x) for (int k = 0; k < 3; ++k) low[k] = std::min(low[k], p[k]), high[k] = std::max(high[k], p[k]);
  std::array<int64_t, 3> size;
  double width = cutoff;
  do {  // wider boxes where there would be many empty ones
    for (int k = 0; k < 3; ++k) size[k] = int64_t((high[k] - low[k]) / width) + 1;
    width *= 1.5;
  } while (double(size[0]) * size[1] * size[2] > 8.0 * x.size() + 1000);
  width /= 1.5;
  std::vector<int> head(size[0] * size[1] * size[2], -1), next(x.size());
  auto box = [&](const Vector &p) { std::array<int64_t, 3> b; for (int k = 0; k < 3; ++k) b[k] = int64_t((p[k] - low[k]) / width); return b; };
  for (size_t n = 0; n < x.size(); ++n) {
    auto b = box(x[n]);
    int &first = head[(b[0] * size[1] + b[1]) * size[2] + b[2]];
    next[n] = first, first = n;
  }
  for (size_t n = 0; n < centres; ++n) {
    auto b = box(x[n]);
    for (int64_t i = std::max<int64_t>(0, b[0] - 1); i <= std::min(size[0] - 1, b[0] + 1); ++i)
      for (int64_t j = std::max<int64_t>(0, b[1] - 1); j <= std::min(size[1] - 1, b[1] + 1); ++j)
        for (int64_t k = std::max<int64_t>(0, b[2] - 1); k <= std::min(size[2] - 1, b[2] + 1); ++k)
          for (int m = head[(i * size[1] + j) * size[2] + k]; m >= 0; m = next[m]) {
            Vector v{x[m][0] - x[n][0], x[m][1] - x[n][1], x[m][2] - x[n][2]};
            if (m == int(n) || dot(v, v) >= cutoff * cutoff) continue;
            e.senders.push_back(m), e.receivers.push_back(n);
            e.vectors.insert(e.vectors.end(), v.begin(), v.end());
          }
  }
  return e;
}

struct Results {
  double energy = 0, seconds = 0;  // seconds of the engine alone
  std::vector<double> forces;
  std::array<double, 9> virial{};
};

static void timed(Results &r, eqfuse::Engine &engine, const std::vector<int> &numbers, int owned, const Edges &e) {
  auto start = std::chrono::steady_clock::now();
  engine.compute(numbers, owned, e.senders, e.receivers, e.vectors);
  r.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  r.energy += engine.energy;
  for (int k = 0; k < 9; ++k) r.virial[k] += engine.virial[k];
}

static Results compute(eqfuse::Engine &engine, const Structure &s) {
  Results r;
  Points p = images(s, engine.cutoff);
  Edges e = pairs(p.at, s.numbers.size(), engine.cutoff);
  for (int &sender : e.senders) sender = p.atom[sender];
  timed(r, engine, s.numbers, s.numbers.size(), e);
  r.forces = engine.forces;
  return r;
}

// A part of a structure along the first lattice vector, with its ghosts.
struct Domain {
  std::vector<int> points, numbers;  // the owned ones first
  int owned;
  Edges edges;
};

static std::vector<Domain> split(const Points &p, const Structure &s, int domains, const eqfuse::Engine &engine) {
  std::vector<Domain> all(domains);
  const double reach = engine.hops * engine.cutoff;
  for (int d = 0; d < domains; ++d) {
    std::vector<int> &mine = all[d].points, ghosts;
    for (size_t n = 0; n < p.at.size(); ++n) {
      double f = p.fraction[n][0], low = double(d) / domains, high = double(d + 1) / domains;
      if (n < s.numbers.size() && (f >= low || d == 0) && (f < high || d == domains - 1)) mine.push_back(n);
      else if ((low - f) * p.heights[0] <= reach && (f - high) * p.heights[0] <= reach) ghosts.push_back(n);
    }
    all[d].owned = mine.size();
    mine.insert(mine.end(), ghosts.begin(), ghosts.end());
    std::vector<Vector> at;
    for (int n : mine) at.push_back(p.at[n]), all[d].numbers.push_back(s.numbers[p.atom[n]]);
    all[d].edges = pairs(at, engine.exchanges ? all[d].owned : at.size(), engine.cutoff);
    std::fprintf(stderr, "domain %d: %d atoms, %zu ghosts\n", d, all[d].owned, ghosts.size());
  }
  return all;
}

// Domains that exchange the features of their ghosts, each on a thread: what messages are for ranks.
class Exchange {
 public:
  Exchange(const std::vector<Domain> &domains, const Points &p) : rows(domains.size()), ghosts(domains.size()) {
    std::map<int, std::pair<int, int>> owners;  // of each atom, its domain and row
    for (size_t d = 0; d < domains.size(); ++d)
      for (int k = 0; k < domains[d].owned; ++k) owners[p.atom[domains[d].points[k]]] = {d, k};
    for (size_t d = 0; d < domains.size(); ++d)
      for (size_t k = domains[d].owned; k < domains[d].points.size(); ++k) {
        auto [domain, row] = owners.at(p.atom[domains[d].points[k]]);
        ghosts[d].push_back({int(k), domain, row});
      }
  }

  // What Engine::exchange is for a domain; T is the type of the rows.
  template <class T> void exchange(int d, void *own, size_t width, bool reverse) {
    auto row = [&](int domain, int k) { return static_cast<T *>(rows[domain]) + k * width; };
    rows[d] = own;
    wait();
    if (!reverse)
      for (auto &ghost : ghosts[d]) std::copy_n(row(ghost.owner, ghost.row), width, row(d, ghost.at));
    else
      for (size_t other = 0; other < ghosts.size(); ++other)
        for (auto &ghost : ghosts[other])
          if (ghost.owner == d)
            for (size_t i = 0; i < width; ++i) row(d, ghost.row)[i] += row(other, ghost.at)[i];
    wait();
    if (reverse)
      for (auto &ghost : ghosts[d]) std::fill_n(row(d, ghost.at), width, T(0));
  }

  void give_up() {
    const std::lock_guard<std::mutex> guard(lock);
    failed = true;
    changed.notify_all();
  }

 private:
  struct Ghost { int at, owner, row; };
  std::vector<void *> rows;
  std::vector<std::vector<Ghost>> ghosts;
  std::mutex lock;
  std::condition_variable changed;
  size_t waiting = 0, round = 0;
  bool failed = false;

  void wait() {
    std::unique_lock<std::mutex> guard(lock);
    const size_t now = round;
    if (++waiting == rows.size()) waiting = 0, ++round, changed.notify_all();
    else changed.wait(guard, [&] { return round != now || failed; });
    if (failed) fail("another domain failed");
  }
};

// The same by domains with ghosts, as a parallel engine has them.
static Results compute_by_domains(std::vector<std::unique_ptr<eqfuse::Engine>> &engines, const Structure &s) {
  eqfuse::Engine &first = *engines[0];
  Points p = images(s, first.hops * first.cutoff);
  const std::vector<Domain> domains = split(p, s, engines.size(), first);
  Exchange ranks(domains, p);
  std::vector<Results> results(domains.size());
  std::vector<std::string> errors;
  std::mutex lock;
  auto run = [&](int d) {
    eqfuse::Engine &engine = *engines[d];
    engine.exchange = [&ranks, &engine, d](void *rows, size_t width, bool reverse) {
      if (engine.is_double) ranks.exchange<double>(d, rows, width, reverse);
      else ranks.exchange<float>(d, rows, width, reverse);
    };
    try {
      timed(results[d], engine, domains[d].numbers, domains[d].owned, domains[d].edges);
    } catch (const std::exception &error) {
      const std::lock_guard<std::mutex> guard(lock);
      errors.push_back(error.what());
      ranks.give_up();
    }
  };
  std::vector<std::thread> threads;
  for (size_t d = 0; d < domains.size(); ++d) {
    threads.emplace_back(run, d);
    if (!first.exchanges) threads.back().join();
  }
  for (auto &thread : threads)
    if (thread.joinable()) thread.join();
  if (!errors.empty()) fail(errors[0]);
  Results r;
  r.forces.assign(3 * s.numbers.size(), 0);
  for (size_t d = 0; d < domains.size(); ++d) {
    r.energy += results[d].energy;
    r.seconds = first.exchanges ? std::max(r.seconds, results[d].seconds) : r.seconds + results[d].seconds;
    for (int k = 0; k < 9; ++k) r.virial[k] += results[d].virial[k];
    for (size_t n = 0; n < domains[d].points.size(); ++n)
      for (int i = 0; i < 3; ++i) r.forces[3 * p.atom[domains[d].points[n]] + i] += engines[d]->forces[3 * n + i];
  }
  return r;
}

// A client of i-PI's protocol
struct Socket {
  int file;
  void send(const void *data, size_t size) const {
    for (auto *at = static_cast<const char *>(data); size;) {
      ssize_t n = ::send(file, at, size, MSG_NOSIGNAL);
      if (n <= 0) fail("the server does not take data any more");
      at += n, size -= n;
    }
  }
  bool receive(void *data, size_t size) const {
    for (auto *at = static_cast<char *>(data); size;) {
      ssize_t n = ::recv(file, at, size, 0);
      if (n <= 0) return false;
      at += n, size -= n;
    }
    return true;
  }
  template <class T> T value() const {
    T x;
    if (!receive(&x, sizeof(x))) fail("the server ended within a message");
    return x;
  }
  void message(const char *text) const {
    char padded[12];
    std::memset(padded, ' ', 12);
    std::memcpy(padded, text, std::strlen(text));
    send(padded, 12);
  }
};

static Socket connect_unix(const std::string &name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = name.find('/') == std::string::npos ? "/tmp/ipi_" + name : name;
  if (path.size() >= sizeof(address.sun_path)) fail(path + " is too long for a socket");
  std::strcpy(address.sun_path, path.c_str());
  Socket s{::socket(AF_UNIX, SOCK_STREAM, 0)};
  if (::connect(s.file, reinterpret_cast<sockaddr *>(&address), sizeof(address))) fail("no server listens at " + path + "; start i-PI first");
  return s;
}

static Socket connect_tcp(const char *host, const char *port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host, port, &wanted, &found)) fail(std::string("there is no host ") + host + " with port " + port);
  for (auto *one = found; one; one = one->ai_next) {
    Socket s{::socket(one->ai_family, SOCK_STREAM, 0)};
    if (!::connect(s.file, one->ai_addr, one->ai_addrlen)) return s;
    ::close(s.file);
  }
  fail(std::string("no server listens at ") + host + ":" + port + "; start i-PI first");
}

static void serve(const Socket &socket, eqfuse::Engine &engine, Structure s) {
  constexpr double BOHR = 0.5291772105638411, HARTREE = 27.211386024367243;  // ASE's, of CODATA 2014
  Results results;
  bool has_data = false;
  char header[13] = {};
  while (socket.receive(header, 12)) {
    std::string message(header);
    message.erase(message.find_last_not_of(' ') + 1);
    if (message == "STATUS") {
      socket.message(has_data ? "HAVEDATA" : "READY");
    } else if (message == "INIT") {
      socket.value<int32_t>();
      std::vector<char> text(socket.value<int32_t>());
      if (!text.empty() && !socket.receive(text.data(), text.size())) fail("the server ended within a message");
    } else if (message == "POSDATA") {
      auto cell = socket.value<std::array<double, 9>>();
      socket.value<std::array<double, 9>>();
      const int count = socket.value<int32_t>();
      if (count != int(s.numbers.size()))
        fail("the server has " + std::to_string(count) + " atoms, and the file of the structure " + std::to_string(s.numbers.size()));
      for (int i = 0; i < 3; ++i) for (int k = 0; k < 3; ++k) s.cell[k][i] = cell[3 * i + k] * BOHR;  // columns there
      for (auto &x : s.positions) { x = socket.value<Vector>(); for (double &y : x) y *= BOHR; }
      results = compute(engine, s);
      has_data = true;
    } else if (message == "GETFORCE") {
      if (!has_data) fail("the server asks for forces before it has sent positions");
      socket.message("FORCEREADY");
      const double energy = results.energy / HARTREE;
      const int32_t count = s.numbers.size(), none = 0;
      for (double &f : results.forces) f *= BOHR / HARTREE;
      for (double &w : results.virial) w /= HARTREE;
      socket.send(&energy, 8), socket.send(&count, 4);
      socket.send(results.forces.data(), 8 * results.forces.size()), socket.send(results.virial.data(), 72), socket.send(&none, 4);
      has_data = false;
    } else if (message == "EXIT") {
      return;
    } else {
      fail("the server sent '" + message + "', which is no message of i-PI");
    }
  }
}

static const char USAGE[] =
    "usage: eqfuse_run FOLDER PLUGIN FILE.xyz [--domains N] [--again]\n"
    "       eqfuse_run FOLDER PLUGIN FILE.xyz --unix NAME | --tcp HOST PORT\n\n"
    "Prints energy (eV), virial (eV) and forces (eV/A) of a structure; computed by N domains with ghosts;\n"
    "then the seconds of one more evaluation for each line of the standard input. Or computes for a server\n"
    "of i-PI's protocol.\n";

int main(int argc, char **argv) try {
  eqfuse::keep_memory();
  if (argc < 4) return std::fputs(USAGE, stderr), 2;
  int domains = 0;
  bool again = false;
  const char *unix_name = nullptr, *host = nullptr, *port = nullptr;
  for (int k = 4; k < argc; ++k) {
    const std::string option = argv[k];
    if (option == "--domains" && k + 1 < argc) domains = std::atoi(argv[++k]);
    else if (option == "--again") again = true;
    else if (option == "--unix" && k + 1 < argc) unix_name = argv[++k];
    else if (option == "--tcp" && k + 2 < argc) host = argv[++k], port = argv[++k];
    else return std::fputs(USAGE, stderr), 2;
  }
  std::vector<std::unique_ptr<eqfuse::Engine>> engines;  // one for each domain
  for (int d = 0; d < std::max(domains, 1); ++d) engines.push_back(std::make_unique<eqfuse::Engine>(argv[1], argv[2]));
  eqfuse::Engine &engine = *engines[0];
  Structure s = read_xyz(argv[3], engine);
  if (unix_name || host) {
    serve(unix_name ? connect_unix(unix_name) : connect_tcp(host, port), engine, s);
    return 0;
  }
  auto once = [&] { return domains > 0 ? compute_by_domains(engines, s) : compute(engine, s); };
  Results r = once();
  std::printf("energy %.17g\nvirial", r.energy);
  for (double w : r.virial) std::printf(" %.17g", w);
  std::printf("\n");
  for (size_t n = 0; n < s.numbers.size(); ++n) std::printf("force %.17g %.17g %.17g\n", r.forces[3 * n], r.forces[3 * n + 1], r.forces[3 * n + 2]);
  std::fflush(stdout);
  while (again && std::getchar() == '\n') {
    std::printf("seconds %.6f\n", once().seconds);
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception &error) {
  std::fprintf(stderr, "eqfuse_run: %s\n", error.what());
  return 1;
}
