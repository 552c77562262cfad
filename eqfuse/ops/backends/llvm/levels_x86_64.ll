; 0 for any x86-64, 1 for x86-64-v3, 2 for x86-64-v4: what the processor has, and the system keeps.
%words = type {i32, i32, i32, i32}

define internal %words @cpuid(i32 %leaf) {
  %r = call %words asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 %leaf, i32 0)
  ret %words %r
}

define internal i1 @has(i32 %value, i32 %bits) {
  %masked = and i32 %value, %bits
  %all = icmp eq i32 %masked, %bits
  ret i1 %all
}

define internal i64 @best() {
  %one = call %words @cpuid(i32 1)
  %seven = call %words @cpuid(i32 7)
  %eight = call %words @cpuid(i32 u0x80000001)
  %c1 = extractvalue %words %one, 2
  %b7 = extractvalue %words %seven, 1
  %c8 = extractvalue %words %eight, 2
  %avx = call i1 @has(i32 %c1, i32 u0x38401000)    ; FMA, MOVBE, OSXSAVE, AVX, F16C
  br i1 %avx, label %more, label %base
base:
  ret i64 0
more:
  %x = call {i32, i32} asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %saved = extractvalue {i32, i32} %x, 0
  %ymm = call i1 @has(i32 %saved, i32 u0x6)
  %zmm = call i1 @has(i32 %saved, i32 u0xE6)
  %lzcnt = call i1 @has(i32 %c8, i32 u0x20)
  %avx2 = call i1 @has(i32 %b7, i32 u0x128)        ; BMI1, AVX2, BMI2
  %avx512 = call i1 @has(i32 %b7, i32 u0xD0030000) ; F, DQ, CD, BW, VL
  %two = and i1 %ymm, %lzcnt
  %v3 = and i1 %two, %avx2
  %four = and i1 %zmm, %avx512
  %v4 = and i1 %v3, %four
  %n3 = zext i1 %v3 to i64
  %n4 = zext i1 %v4 to i64
  %level = add i64 %n3, %n4
  ret i64 %level
}
