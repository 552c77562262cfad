// Forbids what only Linux has, after the headers of the system that may use it.
#include <pthread.h>
#include <sched.h>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>
#include <vector>
#undef __GLIBC__
#undef __linux__
#pragma GCC poison cpu_set_t sched_getaffinity sched_setaffinity mallopt malloc_trim
