// Launches the kernels that a program of `eqfuse export --platform cuda` (or rocm) holds, by the driver
// alone: a handler of XLA's typed FFI in the place of jaxlib's, which is a Python extension.
//
//   g++ -O2 -std=c++17 -shared -fPIC -I INCLUDE eqfuse_gpu.cpp -o eqfuse_kernels.so -ldl
//
// with -DEQFUSE_HIP for ROCm. INCLUDE is the folder with xla/ffi/api/c_api.h, which jaxlib ships. Headers
// of CUDA or HIP are not needed: the driver is opened at the first launch (EQFUSE_GPU_DRIVER names
// another library).
//
// Attributes of a call, texts: image (cubin, or AMD's code object), entry (name of the function), launch (grid x, y, z,
// threads, bytes of shared memory, null pointers behind the arguments) and scalars (int32). The kernel's
// arguments are the inputs, the scalars, the outputs, and the null pointers.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace {

#ifdef EQFUSE_HIP
#define NAME(cuda, hip) hip
using Context = int;  // of a device, its number
constexpr const char *DRIVERS[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"};
#else
#define NAME(cuda, hip) cuda
using Context = void *;
constexpr const char *DRIVERS[] = {"libcuda.so.1"};
constexpr int MAX_DYNAMIC_SHARED = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int64_t SHARED_BY_DEFAULT = 48 << 10;
#endif

struct Driver {
  using Pointer = void *;
  int (*context_of)(Pointer, Context *);
  int (*get_context)(Context *);
  int (*set_context)(Context);
  int (*load)(Pointer *, const void *);
  int (*function)(Pointer *, Pointer, const char *);
#ifndef EQFUSE_HIP
  int (*set)(Pointer, int, int);
#endif
  int (*launch)(Pointer, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Pointer, Pointer *, Pointer *);
  int (*error_text)(int, const char **);

  Driver() {
    if (const char *name = std::getenv("EQFUSE_GPU_DRIVER")) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    else
      for (const char *one : DRIVERS)
        if ((library = dlopen(one, RTLD_NOW | RTLD_LOCAL))) break;
    if (!library) throw std::runtime_error("the driver of " NAME("CUDA", "HIP") " cannot be loaded: " + std::string(dlerror()));
    find(context_of, NAME("cuStreamGetCtx", "hipStreamGetDevice"));
    find(get_context, NAME("cuCtxGetCurrent", "hipGetDevice"));
    find(set_context, NAME("cuCtxSetCurrent", "hipSetDevice"));
    find(load, NAME("cuModuleLoadData", "hipModuleLoadData"));
    find(function, NAME("cuModuleGetFunction", "hipModuleGetFunction"));
    find(launch, NAME("cuLaunchKernel", "hipModuleLaunchKernel"));
    find(error_text, NAME("cuGetErrorString", "hipDrvGetErrorString"));
#ifndef EQFUSE_HIP
    find(set, "cuFuncSetAttribute");
#endif
  }

  void check(int code, const std::string &what) const {
    if (!code) return;
    const char *text = nullptr;
    error_text(code, &text);
    throw std::runtime_error(what + ": " + (text ? text : "error " + std::to_string(code)));
  }

 private:
  Pointer library = nullptr;
  template <class T> void find(T &place, const char *name) {
    place = reinterpret_cast<T>(dlsym(library, name));
    if (!place) throw std::runtime_error(std::string("the driver of " NAME("CUDA", "HIP") " has no ") + name);
  }
};

std::string_view text(const XLA_FFI_CallFrame *frame, std::string_view wanted) {
  const XLA_FFI_Attrs &attrs = frame->attrs;
  for (int64_t k = 0; k < attrs.size; ++k) {
    if (std::string_view(attrs.names[k]->ptr, attrs.names[k]->len) != wanted || attrs.types[k] != XLA_FFI_AttrType_STRING) continue;
    auto *span = static_cast<const XLA_FFI_ByteSpan *>(attrs.attrs[k]);
    return {span->ptr, span->len};
  }
  throw std::runtime_error("the call has no text " + std::string(wanted) + "; was the program made by another version of eqfuse?");
}

std::vector<int64_t> numbers(const XLA_FFI_CallFrame *frame, std::string_view name) {
  std::istringstream words{std::string(text(frame, name))};
  return {std::istream_iterator<int64_t>(words), {}};
}

// The function of an image in a context, loaded once.
void *function_of(const Driver &driver, Context context, std::string_view image, const std::string &entry, [[maybe_unused]] int64_t shared) {
  static std::mutex lock;
  static std::map<std::pair<Context, std::string>, void *> loaded;
  const std::lock_guard<std::mutex> guard(lock);
  auto [place, is_new] = loaded.try_emplace({context, std::string(image)}, nullptr);
  if (!is_new && place->second) return place->second;
  void *module = nullptr, *function = nullptr;
  Context before{};
  driver.check(driver.get_context(&before), "there is no context");
  driver.check(driver.set_context(context), "the context of the stream cannot be used");
  int code = driver.load(&module, image.data());
  if (!code) code = driver.function(&function, module, entry.c_str());
#ifndef EQFUSE_HIP
  if (!code && shared > SHARED_BY_DEFAULT) code = driver.set(function, MAX_DYNAMIC_SHARED, int(shared));
#endif
  driver.set_context(before);
  driver.check(code, "the kernel " + entry + " cannot be loaded; is it compiled for this GPU?");
  return place->second = function;
}

void launch(const XLA_FFI_CallFrame *frame, void *stream) {
  static const Driver driver;
  const std::string entry(text(frame, "entry"));
  const auto sizes = numbers(frame, "launch"), scalars = numbers(frame, "scalars");
  if (sizes.size() != 6) throw std::runtime_error("the attribute launch has not six numbers");
  Context context{};
  driver.check(driver.context_of(stream, &context), "the stream has no context");
  void *function = function_of(driver, context, text(frame, "image"), entry, sizes[4]);
  std::vector<void *> pointers;
  std::vector<int32_t> values(scalars.begin(), scalars.end());
  const size_t count = frame->args.size + frame->rets.size + sizes[5];
  pointers.reserve(count);
  std::vector<void *> arguments;
  auto add = [&](void *pointer) { pointers.push_back(pointer), arguments.push_back(&pointers.back()); };
  for (int64_t k = 0; k < frame->args.size; ++k) add(static_cast<XLA_FFI_Buffer *>(frame->args.args[k])->data);
  for (int32_t &value : values) arguments.push_back(&value);
  for (int64_t k = 0; k < frame->rets.size; ++k) add(static_cast<XLA_FFI_Buffer *>(frame->rets.rets[k])->data);
  for (int64_t k = 0; k < sizes[5]; ++k) add(nullptr);
  driver.check(driver.launch(function, sizes[0], sizes[1], sizes[2], sizes[3], 1, 1, sizes[4], stream, arguments.data(), nullptr),
               "the kernel " + entry + " cannot be launched");
}

}  // namespace

extern "C" XLA_FFI_Error *eqfuse_gpu_launch(XLA_FFI_CallFrame *frame) {
  for (auto *one = frame->extension_start; one; one = one->next)
    if (one->type == XLA_FFI_Extension_Metadata) {
      auto *metadata = reinterpret_cast<XLA_FFI_Metadata_Extension *>(one)->metadata;
      metadata->api_version.major_version = 0;
      metadata->api_version.minor_version = 3;  // the first with these structures
      return nullptr;
    }
  try {
    if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
    XLA_FFI_Stream_Get_Args stream{sizeof(stream), nullptr, frame->ctx, nullptr};
    if (XLA_FFI_Error *error = frame->api->XLA_FFI_Stream_Get(&stream)) return error;
    launch(frame, stream.stream);
    return nullptr;
  } catch (const std::exception &error) {
    const std::string message = std::string("eqfuse: ") + error.what();
    XLA_FFI_Error_Create_Args made{sizeof(made), nullptr, message.c_str(), XLA_FFI_Error_Code_INTERNAL};
    return frame->api->XLA_FFI_Error_Create(&made);
  }
}

extern "C" const void *const eqfuse_kernels[4] = {"eqfuse_gpu_launch", reinterpret_cast<const void *>(&eqfuse_gpu_launch), nullptr, nullptr};
