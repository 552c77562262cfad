// Energies, forces and virials of a network that `eqfuse export for=pjrt` or `for=lammps` wrote, without Python.
//
//   eqfuse::Engine engine(folder, plugin);  // plugin: a library with XLA's PJRT for CPUs
//   engine.compute(numbers, owned, senders, receivers, vectors);
//
// Atoms are the owned ones, then ghosts. Edge e says that atom senders[e] is a neighbour of
// receivers[e] within the cutoff, at vectors[3 e ...] (A) from it; all ordered pairs are needed
// whose receivers are less than `hops` edges away from an owned atom. Folders of exchange=true have
// `hops` 1 for any number of layers, and ask `engine.exchange` for the features of ghosts. Errors are
// exceptions (std::runtime_error) that say what is wrong and what to do. C++17; link with -ldl.
//
// Where `hops` is 1, programs have places for owned atoms and for ghosts apart, and compute nothing
// for a ghost but the messages that it sends.
#pragma once
#include <dlfcn.h>
#include <malloc.h>
#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace eqfuse {

constexpr int FORMAT = 3;  // of folders that this header reads

[[noreturn]] inline void fail(const std::string &text) { throw std::runtime_error(text); }

inline std::string read_file(const std::string &name) {
  std::ifstream file(name, std::ios::binary);
  if (!file) fail(name + " cannot be read; is the folder whole?");
  return {std::istreambuf_iterator<char>(file), {}};
}

// CRC-32 as of zlib.
inline std::string checksum(const std::string &content) {
  uint32_t table[256], crc = ~0u;
  for (uint32_t n = 0; n < 256; ++n) {
    table[n] = n;
    for (int k = 0; k < 8; ++k) table[n] = table[n] >> 1 ^ (table[n] & 1 ? 0xedb88320u : 0);
  }
  for (unsigned char byte : content) crc = table[(crc ^ byte) & 255] ^ crc >> 8;
  return std::to_string(~crc);
}

// Keeps the memory that this process frees, unless the environment sets it, up to the limit of
// give_back(); without it, a step of many atoms takes twice as long. To be called before threads start.
inline bool keeps_memory = false;
inline void keep_memory() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_TRIM_THRESHOLD_") || std::getenv("MALLOC_MMAP_THRESHOLD_")) return;
  keeps_memory = mallopt(M_ARENA_MAX, 1) && mallopt(M_MMAP_MAX, 0) && mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

// Gives what is free back to the system where this process has more than 2 GB, and half of the
// machine's memory, or where others have left less than a quarter of it.
inline void give_back() {
#ifdef __GLIBC__
  if (!keeps_memory) return;
  double has = 0, total = 0, left = 0;  // kB
  std::string word;
  for (std::ifstream file("/proc/self/status"); file >> word;)
    if (word == "VmRSS:") file >> has;
  if (has <= 1 << 21) return;
  for (std::ifstream file("/proc/meminfo"); file >> word;)
    if (word == "MemTotal:") file >> total;
    else if (word == "MemAvailable:") file >> left;
  if (has > total / 2 || left < total / 4) malloc_trim(0);
#endif
}

// The functions of PJRT's C interface that are used here: their places in PJRT_Api, and what each
// takes, a structure of words that begins with its size and a null. Both only ever grow at their
// ends, within major version 0 of the interface.
class Pjrt {
 public:
  enum Function { ERROR_DESTROY = 0, ERROR_MESSAGE = 1, PLUGIN_INITIALIZE = 3, EVENT_DESTROY = 5, EVENT_AWAIT = 8,
                  CLIENT_CREATE = 10, CLIENT_DESTROY = 11, ADDRESSABLE_DEVICES = 16, COMPILE = 20,
                  BUFFER_FROM_HOST = 22, EXECUTABLE_DESTROY = 50, EXECUTE = 55, BUFFER_DESTROY = 58, TO_HOST = 70 };
  using Word = uint64_t;
  struct Words { Word at[32]; Word operator[](int k) const { return at[k]; } };

  explicit Pjrt(const std::string &plugin) {
    void *library = dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("the plug-in of PJRT cannot be loaded: " + std::string(dlerror()));
    auto get = reinterpret_cast<const Word *(*)()>(dlsym(library, "GetPjrtApi"));
    if (!get) fail(plugin + " is no plug-in of PJRT: it has no GetPjrtApi");
    api = get();
    const int major = *reinterpret_cast<const int *>(api + 4);
    if (major != 0) fail(plugin + " has major version " + std::to_string(major) + " of PJRT's interface; 0 is needed");
    call(PLUGIN_INITIALIZE, {});
  }

  template <class T> static Word word(T *pointer) { return reinterpret_cast<Word>(pointer); }

  static Words words(std::initializer_list<Word> given) {
    Words words{};
    words.at[0] = sizeof(words);
    std::copy(given.begin(), given.end(), words.at + 2);
    return words;
  }

  Words call(Function function, std::initializer_list<Word> given) const {
    Words arguments = words(given);
    using Pointer = void *(*)(Words *);
    void *error = reinterpret_cast<Pointer>(api[5 + function])(&arguments);
    if (error) {
      Words message = words({word(error)}), destroy = words({word(error)});
      reinterpret_cast<Pointer>(api[5 + ERROR_MESSAGE])(&message);
      const std::string text(reinterpret_cast<const char *>(message[3]), message[4]);
      reinterpret_cast<Pointer>(api[5 + ERROR_DESTROY])(&destroy);
      fail(text);
    }
    return arguments;
  }

  void await(Word event) const {
    try {
      call(EVENT_AWAIT, {event});
    } catch (...) {
      call(EVENT_DESTROY, {event});
      throw;
    }
    call(EVENT_DESTROY, {event});
  }

  void register_handler(const char *name, const void *handler, const std::string &platform) const {
    static std::set<std::pair<const Word *, std::string>> known;  // a second one would be refused
    if (!known.emplace(api, name).second) return;
    constexpr Word FFI = 5;
    auto *extension = reinterpret_cast<const Word *>(api[1]);
    while (extension && (extension[1] & 0xffffffff) != FFI) extension = reinterpret_cast<const Word *>(extension[2]);
    if (!extension) fail("the plug-in of PJRT takes no kernels: it has no FFI extension");
    Word arguments[7] = {sizeof(arguments), word(name), std::strlen(name), word(handler), word(platform.c_str()), platform.size(), 0};
    void *error = reinterpret_cast<void *(*)(Word *)>(extension[5])(arguments);
    if (error) fail("the plug-in of PJRT refuses the kernel " + std::string(name));
  }

  const Word *api;
};

class Engine {
 public:
  double cutoff = 0;  // A
  int hops = 0;       // ghosts reach this many cutoffs
  bool is_double = false, exchanges = false;
  // Features of the atoms of a compute(), in its order: `width` numbers each, double if is_double, else float.
  struct Rows {
    char *owned, *ghosts;
    int num_owned, num_ghosts;
    size_t width, bytes;  // bytes of a row
    char *operator[](int atom) const { return atom < num_owned ? owned + atom * bytes : ghosts + (atom - num_owned) * bytes; }
  };
  // What a folder of exchange=true asks for, some times in each compute(), of all domains in the same
  // order. Forwards, rows of ghosts become those of the atoms whose images they are; in reverse, what
  // ghosts have is added to these atoms. It is called from a thread of XLA's.
  std::function<void(const Rows &rows, bool reverse)> exchange;
  size_t widest = 0;                       // largest width that it is called with
  std::map<std::string, int> elements;     // symbols and atomic numbers that the network knows
  std::vector<double> energies, forces;    // [owned] eV; [3 atoms] eV/A
  std::vector<double> gradient;            // [3 edges] eV/A, dE/dvectors
  std::string description, pjrt_plugin;    // one line for a log; the plug-in that the folder names, if any
  std::array<double, 9> virial{};          // eV, minus the derivative by a strain
  double energy = 0;                       // eV, of the owned atoms, with reference energies

  // `plugin`: a library with XLA's PJRT; "" for the one that the folder names. `number`: of the device, of several.
  explicit Engine(const std::string &folder, const std::string &plugin = "", int number = 0) : folder(folder) {
    read_manifest();
    if (plugin.empty() && pjrt_plugin.empty()) fail(folder + " names no plug-in of PJRT; name one");
    pjrt = std::make_unique<Pjrt>(plugin.empty() ? pjrt_plugin : plugin);
    if (!library.empty()) load_kernels();
    if (exchanges) {
      pjrt->register_handler("eqfuse_forward", reinterpret_cast<const void *>(&answer<false>), "Host");
      pjrt->register_handler("eqfuse_reverse", reinterpret_cast<const void *>(&answer<true>), "Host");
    }
    client = pjrt->call(Pjrt::CLIENT_CREATE, {})[8];
    auto devices = pjrt->call(Pjrt::ADDRESSABLE_DEVICES, {client});
    device = reinterpret_cast<const Word *>(devices[3])[number % devices[4]];
  }
  Engine(const Engine &) = delete;
  Engine &operator=(const Engine &) = delete;
  ~Engine() {
    try {
      for (Word buffer : on_device) pjrt->call(Pjrt::BUFFER_DESTROY, {buffer});
      for (auto &program : programs)
        if (program.executable) pjrt->call(Pjrt::EXECUTABLE_DESTROY, {program.executable});
      if (client) pjrt->call(Pjrt::CLIENT_DESTROY, {client});
    } catch (...) {
    }
  }

  void compute(const std::vector<int> &numbers, int owned, const std::vector<int> &senders,
               const std::vector<int> &receivers, const std::vector<double> &vectors) {
    check(numbers, owned, senders, receivers, vectors);
    if (exchanges && !exchange && size_t(owned) < numbers.size())
      fail("there are ghosts, and the layers of " + folder + " exchange their features: set Engine::exchange");
    Program &program = fitting(owned, numbers.size() - owned, senders.size());
    if (is_double)
      run<double>(program, numbers, owned, senders, receivers, vectors);
    else
      run<float>(program, numbers, owned, senders, receivers, vectors);
    add_forces(numbers.size(), senders, receivers, vectors);
    energy = 0;
    for (int k = 0; k < owned; ++k) energy += energies[k] += references[numbers[k]];
    give_back();
  }

 private:
  using Word = Pjrt::Word;
  static constexpr Word INT32 = 4, FLOAT32 = 11, FLOAT64 = 12;  // PJRT_Buffer_Type
  struct Program {
    size_t atoms, ghosts, edges;  // places; ghosts are among the atoms where hops is above 1
    std::string file;
    Word executable = 0;
  };
  std::string folder, library, processor;
  std::string platform = "Host";  // as XLA names it
  std::vector<Program> programs;  // the smallest first
  std::map<int, double> references;
  std::map<std::string, std::string> checksums;  // of the files
  std::unique_ptr<Pjrt> pjrt;
  struct Weight {
    Word type;
    size_t bytes;
    std::vector<int64_t> dims;
  };
  std::vector<Weight> weights;  // of all programs, in the order of their file
  std::vector<Word> on_device;  // once a program ran
  Word client = 0, device = 0;
  Program *running = nullptr;
  int num_owned = 0, num_ghosts = 0;  // in this compute()

  // The content of a file of the folder, whose checksum is that of the manifest.
  std::string whole(const std::string &name) const {
    std::string content = read_file(folder + "/" + name);
    auto known = checksums.find(name);
    if (known == checksums.end() || known->second != checksum(content)) fail(folder + "/" + name + " is damaged; export the network again");
    return content;
  }

  void read_manifest() {
    const std::string manifest = read_file(folder + "/manifest.txt"), mark = "checksum manifest.txt ";
    const size_t end = std::min(manifest.rfind(mark), manifest.size());
    if (manifest.substr(end) != mark + checksum(manifest.substr(0, end)) + "\n")
      fail(folder + "/manifest.txt is damaged, or too old; export the network again");
    std::istringstream lines(manifest.substr(0, end));
    std::string line, key, text;
    int format = 0;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      words >> key;
      if (key == "format") {
        words >> format;
        if (format > FORMAT)
          fail(folder + " was made by a later version of eqfuse (format " + std::to_string(format) + ", and this header reads " +
               std::to_string(FORMAT) + "); compile with the eqfuse_engine.hpp in the folder");
        if (format < FORMAT) fail(folder + " was made by an earlier version of eqfuse; export the network again");
      } else if (key == "for") {
        words >> text;
        if (text != "pjrt" && text != "lammps") fail(folder + " is for " + text + "; write one with eqfuse export for=pjrt or for=lammps");
      } else if (key == "dtype") {
        words >> text;
        is_double = text == "float64";
      } else if (key == "platform") {
        words >> text;
        platform = text == "cuda" ? "CUDA" : text == "rocm" ? "ROCM" : "Host";
      } else if (key == "cutoff") {
        words >> cutoff;
      } else if (key == "hops") {
        words >> hops;
      } else if (key == "exchange") {
        exchanges = true;
        words >> widest;
      } else if (key == "description" || key == "plugin") {
        std::getline(words >> std::ws, key == "plugin" ? pjrt_plugin : description);
      } else if (key == "processor") {
        words >> processor;
      } else if (key == "library") {
        words >> library;
      } else if (key == "element") {
        int number;
        double reference;
        words >> text >> number >> reference;
        elements[text] = number;
        references[number] = reference;
      } else if (key == "program") {
        Program program;
        words >> program.atoms >> program.ghosts >> program.edges >> program.file;
        programs.push_back(program);
      } else if (key == "weight") {
        words >> text;
        Weight weight{text == "float64" ? FLOAT64 : text == "float32" ? FLOAT32 : INT32, text == "float64" ? 8u : 4u, {}};
        for (int64_t dim; words >> dim; weight.bytes *= dim) weight.dims.push_back(dim);
        weights.push_back(weight);
      } else if (key == "checksum") {
        words >> text;
        words >> checksums[text];
      }
    }
  }

  // The handler of XLA's typed FFI for an exchange: operands are rows and the address of the engine.
  template <bool reverse> static void *answer(const Word *frame) {
    constexpr int METADATA = 1, EXECUTE = 3, ERROR_CREATE = 6, INTERNAL = 13;
    auto at = [](Word address) { return reinterpret_cast<Word *>(address); };
    for (Word *extension = at(frame[1]); extension; extension = at(extension[2]))
      if (int(extension[1]) == METADATA) {
        const int version[2] = {0, 3};  // the first with this frame
        std::memcpy(at(extension[3]) + 3, version, sizeof(version));
        return nullptr;
      }
    if (int(frame[4]) != EXECUTE) return nullptr;
    try {
      const Word *arguments = at(frame[9]), *from = at(arguments[0]), *to = at(at(frame[14])[0]);
      const Word *dims = at(from[5]), *dims_out = at(to[5]);
      Engine *engine;
      std::memcpy(&engine, at(at(arguments[1])[3]), sizeof(engine));
      Rows rows{};
      rows.num_owned = engine->num_owned, rows.num_ghosts = engine->num_ghosts;
      rows.width = dims[1], rows.bytes = dims[1] * (engine->is_double ? 8 : 4);
      auto *in = reinterpret_cast<char *>(from[3]), *out = reinterpret_cast<char *>(to[3]);
      const size_t places = engine->running->atoms, size = engine->num_ghosts * rows.bytes;
      if (out != in) std::memcpy(out, in, std::min(dims[0], dims_out[0]) * rows.bytes);
      std::vector<char> received(reverse ? size : 0);  // a host may add to rows of ghosts, which are on their way
      if (reverse) std::memcpy(received.data(), in + places * rows.bytes, size);
      rows.owned = out, rows.ghosts = reverse ? received.data() : out + places * rows.bytes;
      if (engine->exchange) engine->exchange(rows, reverse);
      if (reverse) std::memset(out + places * rows.bytes, 0, (dims_out[0] - places) * rows.bytes);
      return nullptr;
    } catch (const std::exception &error) {
      Word words[4] = {sizeof(words), 0, Pjrt::word(error.what()), INTERNAL};
      return reinterpret_cast<void *(*)(Word *)>(at(frame[2])[ERROR_CREATE])(words);
    }
  }

  void load_kernels() {
    utsname here;
    uname(&here);
    if (processor != here.machine)
      fail("the kernels in " + folder + " are for a processor " + processor + ", and this one is " + here.machine +
           "; export the network on such a machine, or with backend=xla");
    whole(library);
    void *handle = dlopen((folder + "/" + library).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle) fail("the kernels of the network cannot be loaded: " + std::string(dlerror()));
    auto *kernel = static_cast<const void *const *>(dlsym(handle, "eqfuse_kernels"));
    if (!kernel) fail(folder + "/" + library + " is no library of eqfuse export: it has no eqfuse_kernels");
    for (; *kernel; kernel += 2) pjrt->register_handler(static_cast<const char *>(kernel[0]), kernel[1], platform);
  }

  void check(const std::vector<int> &numbers, int owned, const std::vector<int> &senders,
             const std::vector<int> &receivers, const std::vector<double> &vectors) const {
    const int atoms = numbers.size();
    if (owned < 0 || owned > atoms) fail("owned is " + std::to_string(owned) + ", outside 0 to " + std::to_string(atoms) + " atoms");
    if (senders.size() != receivers.size() || vectors.size() != 3 * senders.size())
      fail("there are " + std::to_string(senders.size()) + " senders, " + std::to_string(receivers.size()) + " receivers and " +
           std::to_string(vectors.size()) + " components of vectors; each edge has one, one and three");
    for (int number : numbers)
      if (!references.count(number)) {
        std::string known;
        for (auto &element : elements) known += " " + element.first;
        fail("the network does not know the element of atomic number " + std::to_string(number) + "; it knows" + known);
      }
    for (auto *ends : {&senders, &receivers})
      for (int end : *ends)
        if (end < 0 || end >= atoms)
          fail("an edge names atom " + std::to_string(end) + ", outside 0 to " + std::to_string(atoms) + " atoms");
    for (size_t e = 0; e < senders.size(); ++e) {
      const double *v = &vectors[3 * e], square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
      if (square < 1e-6 && senders[e] != receivers[e])  // it would be taken for padding
        fail("atoms " + std::to_string(receivers[e]) + " and " + std::to_string(senders[e]) + " are at one place");
    }
  }

  Program &fitting(size_t owned, size_t ghosts, size_t edges) {
    const size_t atoms = hops > 1 ? owned + ghosts : owned, more = hops > 1 ? 0 : ghosts;
    for (auto &program : programs)
      if (atoms <= program.atoms && more <= program.ghosts && edges <= program.edges) {
        if (!program.executable) compile(program);
        return program;
      }
    auto &most = programs.back();
    auto counts = [](size_t a, size_t g, size_t e) { return std::to_string(a) + " atoms, " + std::to_string(g) + " ghosts and " + std::to_string(e) + " edges"; };
    const double more_ghosts = std::pow(double(more) / std::max<size_t>(most.ghosts, 1), 1.5);  // they grow as a surface
    const double scale = 1.25 * std::max({double(atoms) / most.atoms, double(edges) / most.edges, more ? more_ghosts : 0.0});
    fail("there are " + counts(atoms, more, edges) + ", and the largest program holds " + counts(most.atoms, most.ghosts, most.edges) +
         "; export one with atoms=" + std::to_string(size_t(scale * most.atoms)) + " edges=" + std::to_string(size_t(scale * most.edges)));
  }

  void compile(Program &program) {
    std::string code = whole(program.file);
    // CompileOptionsProto: any device, one replica, one partition, portable
    static const char options[] = "\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01\x20\x01";
    auto text = Pjrt::words({Pjrt::word(code.data()), code.size(), Pjrt::word("mlir"), 4});
    program.executable = pjrt->call(Pjrt::COMPILE, {client, Pjrt::word(&text), Pjrt::word(options), sizeof(options) - 1})[6];
  }

  void load_weights() {
    const std::string content = whole("weights.bin");
    const char *at = content.data();
    for (auto &weight : weights) {
      on_device.push_back(to_device(at, weight.type, weight.dims));
      at += weight.bytes;
    }
  }

  Word to_device(const void *data, Word type, const std::vector<int64_t> &dims) const {
    auto done = pjrt->call(Pjrt::BUFFER_FROM_HOST, {client, Pjrt::word(data), type, Pjrt::word(dims.data()), dims.size(), 0, 0, 0, device, 0, 0});
    pjrt->await(done[13]);
    return done[14];
  }

  template <class T> std::vector<T> to_host(Word buffer, size_t count) const {
    std::vector<T> data(count);
    pjrt->await(pjrt->call(Pjrt::TO_HOST, {buffer, 0, Pjrt::word(data.data()), count * sizeof(T)})[6]);
    return data;
  }

  template <class T>
  void run(Program &program, const std::vector<int> &numbers, int owned, const std::vector<int> &senders,
           const std::vector<int> &receivers, const std::vector<double> &vectors) {
    constexpr Word REAL = sizeof(T) == 8 ? FLOAT64 : FLOAT32;
    const int64_t n = program.atoms + program.ghosts, e = program.edges, atoms = numbers.size(), edges = senders.size();
    const int64_t shift = hops > 1 ? 0 : program.atoms - owned;  // of ghosts, to their places
    std::vector<int> all(n, references.begin()->first), ends[2] = {senders, receivers}, order, begin;
    std::copy(numbers.begin(), numbers.begin() + owned, all.begin());
    std::copy(numbers.begin() + owned, numbers.end(), all.begin() + owned + shift);
    for (auto &list : ends) {
      for (int &end : list) end += end < owned ? 0 : shift;
      for (int64_t k = edges; k < e; ++k) list.push_back((k - edges) * program.atoms / (e - edges));  // padding: no distance
    }
    running = &program, num_owned = owned, num_ghosts = atoms - owned;
    std::vector<T> padded(3 * e);
    std::copy(vectors.begin(), vectors.end(), padded.begin());
    struct Buffers {  // freed whatever happens
      const Pjrt &pjrt;
      std::vector<Word> list;
      ~Buffers() {
        for (Word buffer : list)
          if (buffer) try { pjrt.call(Pjrt::BUFFER_DESTROY, {buffer}); } catch (...) {}
      }
    } in{*pjrt, {}}, out{*pjrt, {0, 0}};
    in.list.push_back(to_device(all.data(), INT32, {n}));
    in.list.push_back(to_device(&owned, INT32, {}));
    in.list.push_back(to_device(padded.data(), REAL, {e, 3}));
    for (auto &list : ends) in.list.push_back(to_device(list.data(), INT32, {e}));
    for (int k : {1, 0}) {
      group(ends[k], n, order, begin);
      in.list.push_back(to_device(order.data(), INT32, {e}));
      in.list.push_back(to_device(begin.data(), INT32, {n + 1}));
    }
    Engine *self = this;
    if (exchanges) in.list.push_back(to_device(&self, INT32, {2}));
    if (on_device.size() < weights.size()) load_weights();
    std::vector<Word> arguments = in.list;
    arguments.insert(arguments.end(), on_device.begin(), on_device.end());
    Word *given[1] = {arguments.data()}, *made[1] = {out.list.data()}, done[1] = {0};
    auto options = Pjrt::words({});
    pjrt->call(Pjrt::EXECUTE, {program.executable, Pjrt::word(&options), Pjrt::word(given), 1, arguments.size(), Pjrt::word(made), Pjrt::word(done), device});
    pjrt->await(done[0]);
    auto of_atoms = to_host<T>(out.list[0], program.atoms), of_edges = to_host<T>(out.list[1], 3 * e);
    energies.assign(of_atoms.begin(), of_atoms.begin() + owned);
    gradient.assign(of_edges.begin(), of_edges.begin() + 3 * edges);
  }

  // Lists edges grouped by an end, in their order, and where the group of each of the nodes begins.
  static void group(const std::vector<int> &ends, size_t nodes, std::vector<int> &order, std::vector<int> &begin) {
    begin.assign(nodes + 1, 0), order.resize(ends.size());
    for (int end : ends) ++begin[end + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<int> next = begin;
    for (size_t e = 0; e < ends.size(); ++e) order[next[ends[e]]++] = e;
  }

  // Adds what the gradient gives to forces and virial.
  void add_forces(size_t atoms, const std::vector<int> &senders, const std::vector<int> &receivers, const std::vector<double> &vectors) {
    std::array<double, 9> strain{};
    forces.assign(3 * atoms, 0);
    for (size_t e = 0; e < senders.size(); ++e)
      for (int k = 0; k < 3; ++k) {
        const double g = gradient[3 * e + k];
        forces[3 * receivers[e] + k] += g, forces[3 * senders[e] + k] -= g;
        for (int i = 0; i < 3; ++i) strain[3 * i + k] += vectors[3 * e + i] * g;
      }
    for (int i = 0; i < 3; ++i)
      for (int k = 0; k < 3; ++k) virial[3 * i + k] = -(strain[3 * i + k] + strain[3 * k + i]) / 2;
  }
};

}  // namespace eqfuse
