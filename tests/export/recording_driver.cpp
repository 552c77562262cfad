// A driver of CUDA, or of HIP, that loads and runs nothing, and writes down what it is asked for.
#include <cstdint>
#include <cstdio>
#include <cstring>

#ifdef EQFUSE_HIP
#include <hip/hip_runtime_api.h>  // which these functions have to agree with
#define NAME(cuda, hip) hip
using Code = hipError_t;
using Context = hipDevice_t;
using Stream = hipStream_t;
using Module = hipModule_t;
using Function = hipFunction_t;
#else
#define NAME(cuda, hip) cuda
using Code = int;
using Context = void *;
using Stream = void *;
using Module = void *;
using Function = void *;
#endif

extern "C" {
char record[1 << 16], kinds[256];  // what was called; the kinds of the next kernel's arguments, p or i
int loads = 0;
static Context current = Context(3);

static void write(const char *text) { std::strncat(record, text, sizeof(record) - std::strlen(record) - 1); }

Code NAME(cuStreamGetCtx, hipStreamGetDevice)(Stream, Context *context) { return *context = Context(7), Code(0); }
Code NAME(cuCtxGetCurrent, hipGetDevice)(Context *context) { return *context = current, Code(0); }
Code NAME(cuCtxSetCurrent, hipSetDevice)(Context context) { return current = context, Code(0); }
Code NAME(cuModuleLoadData, hipModuleLoadData)(Module *module, const void *image) {
  ++loads, *module = static_cast<Module>(const_cast<void *>(image));
  return Code(current != Context(7) || std::memcmp(image, "\x7f" "ELF", 4) ? 200 : 0);
}
Code NAME(cuModuleGetFunction, hipModuleGetFunction)(Function *function, Module, const char *name) {
  static char names[64][128];
  static int count = 0;
  void *kept = std::strncpy(names[count++], name, 127);
  return *function = static_cast<Function>(kept), Code(0);
}
#ifndef EQFUSE_HIP
int cuFuncSetAttribute(void *, int, int) { return 0; }
#endif
Code NAME(cuGetErrorString, hipDrvGetErrorString)(Code, const char **text) { return *text = "device kernel image is invalid", Code(0); }
Code NAME(cuLaunchKernel, hipModuleLaunchKernel)(Function function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
                                                 unsigned shared, Stream, void **arguments, void **) {
  char text[256];
  std::snprintf(text, sizeof(text), "%s %u %u %u %u %u", reinterpret_cast<char *>(function), x, y, z, threads, shared), write(text);
  for (int k = 0; kinds[k]; ++k) {
    if (kinds[k] == 'p') std::snprintf(text, sizeof(text), " p%llu", *static_cast<unsigned long long *>(arguments[k]));
    else std::snprintf(text, sizeof(text), " i%d", *static_cast<int32_t *>(arguments[k]));
    write(text);
  }
  return write(current == Context(3) ? "\n" : " in another context\n"), Code(0);
}
}
