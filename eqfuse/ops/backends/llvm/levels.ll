; Which code of a library the processor runs, and how many threads: see library.py.
declare ptr @getenv(ptr)
declare i64 @atol(ptr)
@eqfuse_limit = external global i64
@level = internal global i64 -1
@threads = internal constant [16 x i8] c"OMP_NUM_THREADS\00"
@most = internal constant [13 x i8] c"EQFUSE_LEVEL\00"

define internal i64 @number(ptr %name, i64 %otherwise) {
  %text = call ptr @getenv(ptr %name)
  %none = icmp eq ptr %text, null
  br i1 %none, label %no, label %yes
no:
  ret i64 %otherwise
yes:
  %value = call i64 @atol(ptr %text)
  ret i64 %value
}

; the level, which the first call finds
define internal i64 @find() {
  %known = load atomic i64, ptr @level seq_cst, align 8
  %done = icmp sge i64 %known, 0
  br i1 %done, label %yes, label %no
yes:
  ret i64 %known
no:
  %limit = call i64 @number(ptr @threads, i64 0)
  %given = icmp sgt i64 %limit, 0
  %threads = select i1 %given, i64 %limit, i64 1024
  store i64 %threads, ptr @eqfuse_limit
  %here = call i64 @best()
  %asked = call i64 @number(ptr @most, i64 %here)
  %less = icmp ult i64 %asked, %here
  %level = select i1 %less, i64 %asked, i64 %here
  store atomic i64 %level, ptr @level seq_cst, align 8
  ret i64 %level
}
