// A network that `eqfuse export` wrote as a pair style of LAMMPS, loaded by its PLUGIN package.
//
//   plugin load FOLDER/eqfuseplugin.so
//   pair_style eqfuse FOLDER     # then a PJRT plug-in, if another than the one in FOLDER; mass_check no
//   pair_coeff * * Si O          # the elements of types 1, 2, ...; NULL for a type of another style of a hybrid
//
// Ghosts reach one cutoff. Between layers, features of ghosts come from their owners by LAMMPS's own messages. LAMMPS's
// memory and MPI are used by the main thread alone; the network runs on a thread beside it.
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <thread>

#include <mpi.h>

#include "eqfuse_engine.hpp"

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "lammps.h"
#include "memory.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair.h"
#include "update.h"
#include "utils.h"

namespace {

using namespace LAMMPS_NS;
using eqfuse::Engine;

double seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Runs `work` on a thread of its own, and what that asks for on the thread that called `run`.
class Requests {
 public:
  template <class Work, class Serve> void run(Work work, Serve serve) {
    done = asked = false;
    std::exception_ptr failure;
    std::thread worker([&] {
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard<std::mutex> hold(lock);
      done = true;
      changed.notify_all();
    });
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
      changed.wait(hold, [&] { return done || asked; });
      if (!asked) break;
      serve(*rows, reverse);
      asked = false;
      changed.notify_all();
    }
    hold.unlock();
    worker.join();
    if (failure) std::rethrow_exception(failure);
  }

  void ask(const Engine::Rows &what, bool back) {
    std::unique_lock<std::mutex> hold(lock);
    rows = &what, reverse = back, asked = true;
    changed.notify_all();
    changed.wait(hold, [&] { return !asked; });
  }

 private:
  std::mutex lock;
  std::condition_variable changed;
  bool done = false, asked = false, reverse = false;
  const Engine::Rows *rows = nullptr;
};

// Gives each rank of a machine its own cores, unless the launcher has done so. Linux only.
void share_cores([[maybe_unused]] MPI_Comm world) {
#ifdef __linux__
  MPI_Comm here;
  int rank, size;
  MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
  MPI_Comm_rank(here, &rank), MPI_Comm_size(here, &size);
  cpu_set_t mine;
  sched_getaffinity(0, sizeof(mine), &mine);
  std::vector<cpu_set_t> all(size);
  MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all.data(), sizeof(mine), MPI_BYTE, here);
  MPI_Comm_free(&here);
  bool alike = size > 1;
  for (auto &other : all) alike = alike && CPU_EQUAL(&other, &mine);
  if (alike) {
    std::vector<int> cores;
    for (int k = 0; k < CPU_SETSIZE; ++k)
      if (CPU_ISSET(k, &mine)) cores.push_back(k);
    const int each = std::max<int>(cores.size() / size, 1), first = rank * each % cores.size();
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int k = 0; k < each; ++k) CPU_SET(cores[first + k], &own);
    sched_setaffinity(0, sizeof(own), &own);
  }
#endif
}

// Whether a mass, in u, is one of an element: to a tenth of its mean, or of an isotope that is further off.
bool is_mass(double mass, int number, double mean) {
  static const std::multimap<int, double> isotopes{{1, 2.014}, {1, 3.016}, {2, 3.016}, {3, 6.015}, {6, 14.003}, {16, 35.967}, {20, 45.954}, {20, 47.953}};
  auto near = [&](double other) { return std::abs(mass - other) <= 0.1 * other; };
  const auto [first, last] = isotopes.equal_range(number);
  return near(mean) || std::any_of(first, last, [&](auto &isotope) { return near(isotope.second); });
}

class PairEqfuse : public Pair {
 public:
  explicit PairEqfuse(LAMMPS *lmp) : Pair(lmp) {
    restartinfo = 0, one_coeff = 1, manybody_flag = 1, no_virial_fdotr_compute = 1, single_enable = 0;
    centroidstressflag = CENTROID_NOTAVAIL;
    unit_convert_flag = 0;
  }

  ~PairEqfuse() override {
    if (!allocated) return;
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }

  void settings(int count, char **words) override {
    checks_masses = true;
    if (count > 2 && std::string(words[count - 2]) == "mass_check") checks_masses = utils::logical(FLERR, words[count - 1], false, lmp), count -= 2;
    if (count < 1 || count > 2)
      error->all(FLERR, "pair_style eqfuse takes a folder of 'eqfuse export', and perhaps a PJRT plug-in and 'mass_check no'");
    if (std::string(update->unit_style) != "metal") error->all(FLERR, "pair_style eqfuse computes in eV and A: set 'units metal', got {}", update->unit_style);
    static bool shared = false;  // before XLA starts its threads
    if (!shared) share_cores(world), shared = true;
    eqfuse::keep_memory();
    try {
      engine = std::make_unique<Engine>(words[0], count > 1 ? words[1] : "");
    } catch (const std::exception &problem) {
      error->one(FLERR, "pair_style eqfuse: {}", problem.what());
    }
    folder = words[0];
    engine->exchange = [this](const Engine::Rows &rows, bool reverse) { requests.ask(rows, reverse); };
    comm_forward = comm_reverse = numbers_of(engine->widest);
    if (comm->me == 0) {
      std::string elements;
      for (auto &element : engine->elements) elements += " " + element.first;
      utils::logmesg(lmp, "eqfuse: {}, cutoff {:.6g} A, {};{}\n", engine->description, engine->cutoff, engine->is_double ? "float64" : "float32", elements);
    }
  }

  void coeff(int count, char **words) override {
    const int types = atom->ntypes;
    if (count != types + 2 || std::string(words[0]) != "*" || std::string(words[1]) != "*")
      error->all(FLERR, "pair_coeff of eqfuse is '* *' and an element for each of the {} types, got {} words", types, count);
    if (!allocated) {
      memory->create(setflag, types + 1, types + 1, "pair:setflag");
      memory->create(cutsq, types + 1, types + 1, "pair:cutsq");
      allocated = 1;
    }
    elements_of.assign(types + 1, 0);
    for (int i = 1; i <= types; ++i) std::fill_n(setflag[i], types + 1, 0);  // until all are known
    for (int t = 1; t <= types; ++t) {
      const std::string symbol = words[t + 1];
      auto found = engine->elements.find(symbol);
      if (found != engine->elements.end()) {
        elements_of[t] = found->second;
      } else if (symbol != "NULL") {
        std::string known;
        for (auto &element : engine->elements) known += " " + element.first;
        error->all(FLERR, "the network does not know the element {} of type {}; it knows{}", symbol, t, known);
      }
    }
    for (int i = 1; i <= types; ++i)
      for (int j = 1; j <= types; ++j) setflag[i][j] = elements_of[i] && elements_of[j];
  }

  void init_style() override {
    if (!force->newton_pair) error->all(FLERR, "pair_style eqfuse needs 'newton on', since forces on ghosts go back to their owners");
    for (int k = 1; k < 4 && atom->molecular != Atom::ATOMIC; ++k)
      if (force->special_lj[k] == 0 && force->special_coul[k] == 0)
        error->all(FLERR, "bonded pairs are left out, and the network of pair_style eqfuse needs them: set 'special_bonds lj/coul 1 1 1'");
    for (int z : elements_of)
      if (z && !engine->masses.count(z)) error->all(FLERR, "the network of {} does not know all elements of pair_coeff; repeat it", folder);
    if (checks_masses) check_masses();
    neighbor->add_request(this, NeighConst::REQ_FULL);
    steps = 0, in_network = in_lists = in_messages = bytes = 0;
  }

  double init_one(int, int) override { return engine->cutoff; }

  void compute(int eflag, int vflag) override {
    if (neighbor->exclude || neighbor->includegroup)  // not known before
      error->all(FLERR, "'neigh_modify exclude' or 'include' (fix gcmc has one) leaves out pairs that the network of pair_style eqfuse needs; remove it");
    ev_init(eflag, vflag);
    const double start = seconds();
    const int owned = atom->nlocal, all = owned + atom->nghost;
    numbers.resize(all);
    for (int i = 0; i < all; ++i) numbers[i] = elements_of[atom->type[i]] ? elements_of[atom->type[i]] : engine->elements.begin()->second;
    list_edges();
    const double listed = seconds(), sent = in_messages;
    try {
      requests.run([&] { engine->compute(numbers, owned, senders, receivers, vectors); },
                   [&](const Engine::Rows &what, bool reverse) { exchange(what, reverse); });
    } catch (const std::exception &problem) {
      error->one(FLERR, "pair_style eqfuse, {}: {}", folder, problem.what());
    }
    in_lists += listed - start, in_network += seconds() - listed - (in_messages - sent), ++steps;
    most_owned = std::max(most_owned, owned), most_ghosts = std::max(most_ghosts, all - owned);
    for (int i = 0; i < all; ++i)
      for (int k = 0; k < 3; ++k) atom->f[i][k] += engine->forces[3 * i + k];
    for (int i = 0; i < owned; ++i) {
      if (!elements_of[atom->type[i]]) continue;
      if (eflag_global) eng_vdwl += engine->energies[i];
      if (eflag_atom) eatom[i] += engine->energies[i];
    }
    static const int from[6] = {0, 1, 2, 0, 0, 1}, to[6] = {0, 1, 2, 1, 2, 2};  // xx yy zz xy xz yz
    if (vflag_global)
      for (int k = 0; k < 6; ++k) virial[k] += engine->virial[3 * from[k] + to[k]];
    if (vflag_atom)  // half of what an edge has to either atom
      for (size_t e = 0; e < senders.size(); ++e)
        for (int k = 0; k < 6; ++k) {
          const double *d = &vectors[3 * e], *g = &engine->gradient[3 * e];
          const double half = -0.25 * (d[from[k]] * g[to[k]] + d[to[k]] * g[from[k]]);
          vatom[senders[e]][k] += half, vatom[receivers[e]][k] += half;
        }
  }

  // Prints, at the end of a run, where its time went.
  void finish() override {
    rusage used;
    getrusage(RUSAGE_SELF, &used);
#ifdef __APPLE__
    const double per_megabyte = 1 << 20;  // of bytes, and elsewhere of kB
#else
    const double per_megabyte = 1024;
#endif
    const double mine[6] = {in_network, in_lists, in_messages, bytes, double(most_ghosts), used.ru_maxrss / per_megabyte};
    double most[6];
    MPI_Allreduce(mine, most, 6, MPI_DOUBLE, MPI_MAX, world);
    int atoms;
    MPI_Allreduce(&most_owned, &atoms, 1, MPI_INT, MPI_MAX, world);
    if (comm->me == 0 && steps)
      utils::logmesg(lmp, "eqfuse, {} steps, the slowest rank: network {:.4g} s, pairs {:.4g} s, messages {:.4g} s ({:.4g} MB sent); at most {} atoms and {} ghosts, {:.0f} MB of memory\n",
                     steps, most[0], most[1], most[2], most[3] / 1e6, atoms, int(most[4]), most[5]);
  }

  double memory_usage() override {
    return Pair::memory_usage() + sizeof(int) * (numbers.capacity() + senders.capacity() + receivers.capacity()) + sizeof(double) * vectors.capacity();
  }

  int pack_forward_comm(int count, int *list, double *buffer, int, int *) override { return pack(count, buffer, [&](int k) { return list[k]; }); }
  int pack_reverse_comm(int count, int first, double *buffer) override { return pack(count, buffer, [&](int k) { return first + k; }); }
  void unpack_forward_comm(int count, int first, double *buffer) override {
    for (int k = 0; k < count; ++k, buffer += numbers_of(rows->width)) std::memcpy((*rows)[first + k], buffer, rows->bytes);
  }
  void unpack_reverse_comm(int count, int *list, double *buffer) override {
    for (int k = 0; k < count; ++k, buffer += numbers_of(rows->width))
      if (engine->is_double) add<double>((*rows)[list[k]], buffer);
      else add<float>((*rows)[list[k]], buffer);
  }

 private:
  std::unique_ptr<Engine> engine;
  std::string folder;
  Requests requests;
  std::vector<int> elements_of, numbers, senders, receivers;  // atomic number of a type, of an atom; ends of edges
  std::vector<double> vectors;
  const Engine::Rows *rows = nullptr;  // that are exchanged now
  bigint steps = 0;
  double in_network = 0, in_lists = 0, in_messages = 0, bytes = 0;
  int most_owned = 0, most_ghosts = 0;

  bool checks_masses = true;

  // Refuses masses that belong to other elements than pair_coeff names.
  void check_masses() const {
    const int types = atom->ntypes;
    std::vector<double> low(types + 1, std::numeric_limits<double>::infinity()), high(types + 1, 0);
    auto add = [&](int type, double mass) { low[type] = std::min(low[type], mass), high[type] = std::max(high[type], mass); };
    if (atom->rmass)
      for (int i = 0; i < atom->nlocal; ++i) add(atom->type[i], atom->rmass[i]);
    else
      for (int t = 1; t <= types; ++t)
        if (atom->mass_setflag[t]) add(t, atom->mass[t]);
    MPI_Allreduce(MPI_IN_PLACE, low.data(), types + 1, MPI_DOUBLE, MPI_MIN, world);
    MPI_Allreduce(MPI_IN_PLACE, high.data(), types + 1, MPI_DOUBLE, MPI_MAX, world);
    bool fits = true;
    std::string given, named;
    for (int t = 1; t <= types; ++t) {
      const int z = elements_of[t];
      const bool has_atoms = high[t] > 0;
      const double mean = z ? engine->masses.at(z) : 0;
      fits = fits && (!z || !has_atoms || (is_mass(low[t], z, mean) && is_mass(high[t], z, mean)));
      given += !has_atoms ? " none" : low[t] == high[t] ? fmt::format(" {:.6g}", low[t]) : fmt::format(" {:.6g}-{:.6g}", low[t], high[t]);
      std::string symbol = " NULL";
      for (auto &element : engine->elements)
        if (element.second == z) symbol = fmt::format(" {} ({:.6g})", element.first, mean);
      named += symbol;
    }
    if (!fits)
      error->all(FLERR, "masses of types 1 to {} are{}, and pair_coeff names{}: name the elements in the order of the types, or end pair_style with 'mass_check no'", types, given, named);
  }

  // Messages are of double; two floats are one.
  int numbers_of(size_t width) const { return engine->is_double ? width : (width + 1) / 2; }

  void list_edges() {
    senders.clear(), receivers.clear(), vectors.clear();
    const double square = engine->cutoff * engine->cutoff;
    double **x = atom->x;
    for (int ii = 0; ii < list->inum; ++ii) {
      const int i = list->ilist[ii], *near = list->firstneigh[i];
      if (!elements_of[atom->type[i]]) continue;
      for (int jj = 0; jj < list->numneigh[i]; ++jj) {
        const int j = near[jj] & NEIGHMASK;
        const double d[3] = {x[j][0] - x[i][0], x[j][1] - x[i][1], x[j][2] - x[i][2]};
        const double apart = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
        if (apart >= square || !elements_of[atom->type[j]]) continue;
        if (!(apart >= 1e-6)) error->one(FLERR, "atoms {} and {} are at one place, or at none (nan)", atom->tag[i], atom->tag[j]);
        senders.push_back(j), receivers.push_back(i);
        vectors.insert(vectors.end(), d, d + 3);
      }
    }
  }

  void exchange(const Engine::Rows &what, bool reverse) {
    const double start = seconds();
    rows = &what;
    if (reverse) comm->reverse_comm(this, numbers_of(what.width));
    else comm->forward_comm(this, numbers_of(what.width));
    in_messages += seconds() - start;
  }

  template <class Index> int pack(int count, double *buffer, Index index) {
    const int each = numbers_of(rows->width);
    for (int k = 0; k < count; ++k) std::memcpy(buffer + k * each, (*rows)[index(k)], rows->bytes);
    bytes += sizeof(double) * each * count;
    return each * count;
  }

  template <class T> void add(char *row, const double *message) {
    auto *to = reinterpret_cast<T *>(row);
    auto *from = reinterpret_cast<const T *>(message);
    for (size_t k = 0; k < rows->width; ++k) to[k] += from[k];
  }
};

// Whether the headers of MPI belong to the library that LAMMPS has loaded, whose handles may be of another size.
bool has_own_mpi() {
#ifdef OPEN_MPI
  const bool compiled = true;
#else
  const bool compiled = false;  // MPICH and those with its interface, or LAMMPS's STUBS
#endif
  char version[8192] = {0};  // the longest of all: MPICH's
  int length;
  MPI_Get_library_version(version, &length);
  return (std::string(version).find("Open MPI") != std::string::npos) == compiled;
}

Pair *create(LAMMPS *lmp) { return new PairEqfuse(lmp); }

// What LAMMPS's PLUGIN package registers, by its documentation (lammpsplugin.h).
struct Plugin {
  const char *version, *style, *name, *info, *author;
  Pair *(*creator)(LAMMPS *);
  void *handle;
};

}  // namespace

extern "C" void lammpsplugin_init(void *lmp, void *handle, void *registers) {
  auto *lammps = static_cast<LAMMPS *>(lmp);
  if (std::string(lammps->version) != EQFUSE_LAMMPS_VERSION)
    lammps->error->all(FLERR, "this plug-in was compiled for LAMMPS of {}, and this is {}; compile it again: {}", EQFUSE_LAMMPS_VERSION, lammps->version, EQFUSE_COMPILE);
  if (!has_own_mpi())
    lammps->error->all(FLERR, "this plug-in was compiled with another MPI than this LAMMPS; compile it again by the compiler of its MPI: MPICXX=/its/bin/mpicxx {}", EQFUSE_COMPILE);
  Plugin plugin{EQFUSE_LAMMPS_VERSION, "pair", "eqfuse", "networks of eqfuse", "eqfuse", &create, handle};
  reinterpret_cast<void (*)(Plugin *, void *)>(registers)(&plugin, lmp);
}
