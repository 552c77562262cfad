; made of runtime.c by scripts/runtime_ir.py, sha256 5fbf1768e6cdfb097f197199f64c08072003960092fa099362e26d8d1df32d98
%struct.Check = type { ptr, ptr, ptr, i64, i64 }
%struct.XLA_FFI_Error_Create_Args = type { i64, ptr, ptr, i32 }
%struct.Counts = type { i64, i64, i64 }
%struct.Entry = type { i64, i64, i64, i64, i64, ptr }
%struct.Order = type { i64, i64, i64 }
%struct.Pass = type { ptr, i64, i64, i64, i64, i64, i64 }
%struct.XLA_FFI_Error_Destroy_Args = type { i64, ptr, ptr }
%struct.XLA_FFI_ThreadPool_NumThreads_Args = type { i64, ptr, ptr, ptr }
%struct.XLA_FFI_ThreadPool_Schedule_Args = type { i64, ptr, ptr, ptr, ptr }

@eqfuse_limit = local_unnamed_addr global i64 1, align 8
@eqfuse_active = global i64 0, align 8
@eqfuse_advice = local_unnamed_addr global i32 14, align 4
@eqfuse_version = local_unnamed_addr global [2 x i32] [i32 0, i32 3], align 4
@.str = private unnamed_addr constant [33 x i8] c"eqfuse: expected %ld %s, got %ld\00", align 1
@.str.1 = private unnamed_addr constant [8 x i8] c"results\00", align 1
@.str.2 = private unnamed_addr constant [10 x i8] c"arguments\00", align 1
@.str.3 = private unnamed_addr constant [43 x i8] c"eqfuse: no memory for %ld bytes of scratch\00", align 1
@.str.4 = private unnamed_addr constant [40 x i8] c"eqfuse: %s must be of type %ld, got %ld\00", align 1
@.str.5 = private unnamed_addr constant [40 x i8] c"eqfuse: %s must be of rank %ld, got %ld\00", align 1
@.str.6 = private unnamed_addr constant [42 x i8] c"eqfuse: %s must have %ld columns, got %ld\00", align 1
@.str.7 = private unnamed_addr constant [39 x i8] c"eqfuse: %s must have %ld rows, got %ld\00", align 1
@.str.8 = private unnamed_addr constant [41 x i8] c"eqfuse: %s[%ld] is %ld, outside [0, %ld)\00", align 1
@.str.9 = private unnamed_addr constant [54 x i8] c"eqfuse: %s must be a permutation, and holds %ld twice\00", align 1
@.str.10 = private unnamed_addr constant [80 x i8] c"eqfuse: %s[%ld] is %ld, not in [%ld, %ld]: indices of edges must be in [0, %ld)\00", align 1
@.str.11 = private unnamed_addr constant [85 x i8] c"eqfuse: %s[%ld] is %ld, and %s[%ld] is %ld, not %ld: make edges by Edges.from_arrays\00", align 1

define ptr @eqfuse_call(ptr noundef readonly %0, ptr noundef readonly %1) local_unnamed_addr {
  %3 = alloca %struct.Check, align 8
  %4 = alloca [512 x i8], align 16
  %5 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %6 = alloca %struct.Check, align 8
  %7 = alloca [512 x i8], align 16
  %8 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %9 = alloca [512 x i8], align 16
  %10 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %11 = alloca [512 x i8], align 16
  %12 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %13 = alloca [512 x i8], align 16
  %14 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %15 = alloca ptr, align 16
  %16 = alloca ptr, align 8
  %17 = alloca %struct.Counts, align 8
  %18 = alloca [512 x i8], align 16
  %19 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %20 = alloca [512 x i8], align 16
  %21 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %22 = getelementptr inbounds i8, ptr %0, i64 8
  %23 = load ptr, ptr %22, align 8
  %24 = icmp eq ptr %23, null
  br i1 %24, label %34, label %25

25:                                               ; preds = %2
  %26 = getelementptr inbounds i8, ptr %23, i64 8
  %27 = load i32, ptr %26, align 8
  %28 = icmp eq i32 %27, 1
  br i1 %28, label %29, label %34

29:                                               ; preds = %25
  %30 = getelementptr inbounds i8, ptr %23, i64 24
  %31 = load ptr, ptr %30, align 8
  %32 = getelementptr inbounds i8, ptr %31, i64 24
  %33 = load <2 x i32>, ptr @eqfuse_version, align 4
  store <2 x i32> %33, ptr %32, align 8
  br label %672

34:                                               ; preds = %25, %2
  %35 = load i64, ptr %1, align 8
  %36 = getelementptr inbounds i8, ptr %1, i64 8
  %37 = load i64, ptr %36, align 8
  %38 = getelementptr inbounds i8, ptr %0, i64 56
  %39 = load i64, ptr %38, align 8
  %40 = getelementptr inbounds i8, ptr %0, i64 96
  %41 = load i64, ptr %40, align 8
  %42 = getelementptr inbounds i8, ptr %0, i64 72
  %43 = load ptr, ptr %42, align 8
  store ptr %43, ptr %15, align 16
  %44 = getelementptr inbounds i8, ptr %0, i64 112
  %45 = load ptr, ptr %44, align 8
  store ptr %45, ptr %16, align 8
  %46 = add nsw i64 %37, %35
  %47 = tail call ptr @llvm.stacksave.p0()
  %48 = alloca ptr, i64 %46, align 16
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(24) %17, i8 -1, i64 24, i1 false)
  %49 = getelementptr inbounds i8, ptr %1, i64 24
  %50 = getelementptr inbounds i8, ptr %8, i64 8
  %51 = getelementptr inbounds i8, ptr %8, i64 16
  %52 = getelementptr inbounds i8, ptr %8, i64 24
  %53 = getelementptr inbounds i8, ptr %0, i64 16
  %54 = getelementptr inbounds i8, ptr %10, i64 8
  %55 = getelementptr inbounds i8, ptr %10, i64 16
  %56 = getelementptr inbounds i8, ptr %10, i64 24
  %57 = getelementptr inbounds i8, ptr %12, i64 8
  %58 = getelementptr inbounds i8, ptr %12, i64 16
  %59 = getelementptr inbounds i8, ptr %12, i64 24
  %60 = getelementptr inbounds i8, ptr %14, i64 8
  %61 = getelementptr inbounds i8, ptr %14, i64 16
  %62 = getelementptr inbounds i8, ptr %14, i64 24
  %63 = icmp eq i64 %39, %35
  br i1 %63, label %64, label %75

64:                                               ; preds = %34
  %65 = icmp eq i64 %41, %37
  br label %67

66:                                               ; preds = %182
  br i1 %65, label %67, label %75

67:                                               ; preds = %64, %66
  %68 = phi i64 [ %41, %66 ], [ %39, %64 ]
  %69 = phi i64 [ %183, %66 ], [ 0, %64 ]
  %70 = phi ptr [ %16, %66 ], [ %15, %64 ]
  %71 = phi i1 [ false, %66 ], [ true, %64 ]
  %72 = icmp sgt i64 %68, 0
  br i1 %72, label %73, label %182

73:                                               ; preds = %67
  %74 = load ptr, ptr %70, align 8
  br label %87

75:                                               ; preds = %66, %34
  %76 = phi ptr [ @.str.2, %34 ], [ @.str.1, %66 ]
  %77 = phi i64 [ %39, %34 ], [ %41, %66 ]
  %78 = phi i64 [ %35, %34 ], [ %37, %66 ]
  %79 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %18, i64 noundef 512, ptr noundef nonnull @.str, i64 noundef %78, ptr noundef nonnull %76, i64 noundef %77)
  store i64 32, ptr %19, align 8
  %80 = getelementptr inbounds i8, ptr %19, i64 8
  store ptr null, ptr %80, align 8
  %81 = getelementptr inbounds i8, ptr %19, i64 16
  store ptr %18, ptr %81, align 8
  %82 = getelementptr inbounds i8, ptr %19, i64 24
  store i32 3, ptr %82, align 8
  %83 = load ptr, ptr %53, align 8
  %84 = getelementptr inbounds i8, ptr %83, i64 48
  %85 = load ptr, ptr %84, align 8
  %86 = call ptr %85(ptr noundef nonnull %19)
  br label %670

87:                                               ; preds = %73, %175
  %88 = phi i64 [ %69, %73 ], [ %180, %175 ]
  %89 = phi i64 [ 0, %73 ], [ %179, %175 ]
  %90 = getelementptr inbounds ptr, ptr %74, i64 %89
  %91 = load ptr, ptr %90, align 8
  %92 = load ptr, ptr %49, align 8
  %93 = getelementptr inbounds %struct.Entry, ptr %92, i64 %88
  %94 = getelementptr inbounds i8, ptr %91, i64 16
  %95 = load i32, ptr %94, align 8
  %96 = zext i32 %95 to i64
  %97 = getelementptr inbounds i8, ptr %91, i64 32
  %98 = load i64, ptr %97, align 8
  %99 = load i64, ptr %93, align 8
  %100 = icmp eq i64 %99, %96
  br i1 %100, label %109, label %101

101:                                              ; preds = %87
  %102 = getelementptr inbounds i8, ptr %93, i64 40
  %103 = load ptr, ptr %102, align 8
  %104 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 512, ptr noundef nonnull @.str.4, ptr noundef %103, i64 noundef %99, i64 noundef %96)
  store i64 32, ptr %8, align 8
  store ptr null, ptr %50, align 8
  store ptr %7, ptr %51, align 8
  store i32 3, ptr %52, align 8
  %105 = load ptr, ptr %53, align 8
  %106 = getelementptr inbounds i8, ptr %105, i64 48
  %107 = load ptr, ptr %106, align 8
  %108 = call ptr %107(ptr noundef nonnull %8)
  br label %172

109:                                              ; preds = %87
  %110 = getelementptr inbounds i8, ptr %93, i64 8
  %111 = load i64, ptr %110, align 8
  %112 = icmp eq i64 %98, %111
  br i1 %112, label %121, label %113

113:                                              ; preds = %109
  %114 = getelementptr inbounds i8, ptr %93, i64 40
  %115 = load ptr, ptr %114, align 8
  %116 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %9, i64 noundef 512, ptr noundef nonnull @.str.5, ptr noundef %115, i64 noundef %111, i64 noundef %98)
  store i64 32, ptr %10, align 8
  store ptr null, ptr %54, align 8
  store ptr %9, ptr %55, align 8
  store i32 3, ptr %56, align 8
  %117 = load ptr, ptr %53, align 8
  %118 = getelementptr inbounds i8, ptr %117, i64 48
  %119 = load ptr, ptr %118, align 8
  %120 = call ptr %119(ptr noundef nonnull %10)
  br label %172

121:                                              ; preds = %109
  %122 = icmp eq i64 %98, 2
  %123 = getelementptr inbounds i8, ptr %91, i64 40
  %124 = load ptr, ptr %123, align 8
  br i1 %122, label %125, label %139

125:                                              ; preds = %121
  %126 = getelementptr inbounds i8, ptr %124, i64 8
  %127 = load i64, ptr %126, align 8
  %128 = getelementptr inbounds i8, ptr %93, i64 24
  %129 = load i64, ptr %128, align 8
  %130 = icmp eq i64 %127, %129
  br i1 %130, label %139, label %131

131:                                              ; preds = %125
  %132 = getelementptr inbounds i8, ptr %93, i64 40
  %133 = load ptr, ptr %132, align 8
  %134 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %11, i64 noundef 512, ptr noundef nonnull @.str.6, ptr noundef %133, i64 noundef %129, i64 noundef %127)
  store i64 32, ptr %12, align 8
  store ptr null, ptr %57, align 8
  store ptr %11, ptr %58, align 8
  store i32 3, ptr %59, align 8
  %135 = load ptr, ptr %53, align 8
  %136 = getelementptr inbounds i8, ptr %135, i64 48
  %137 = load ptr, ptr %136, align 8
  %138 = call ptr %137(ptr noundef nonnull %12)
  br label %172

139:                                              ; preds = %125, %121
  %140 = getelementptr inbounds i8, ptr %93, i64 16
  %141 = load i64, ptr %140, align 8
  %142 = icmp eq i64 %141, 2
  %143 = icmp eq i64 %141, 4
  %144 = or i1 %142, %143
  %145 = zext i1 %144 to i64
  %146 = load i64, ptr %124, align 8
  %147 = sub nsw i64 %146, %145
  %148 = icmp sgt i64 %141, -1
  br i1 %148, label %149, label %158

149:                                              ; preds = %139
  %150 = icmp eq i64 %141, 0
  %151 = icmp ult i64 %141, 3
  %152 = select i1 %151, i64 8, i64 16
  %153 = select i1 %150, i64 0, i64 %152
  %154 = getelementptr inbounds i8, ptr %17, i64 %153
  %155 = load i64, ptr %154, align 8
  %156 = icmp slt i64 %155, 0
  %157 = select i1 %156, i64 %147, i64 %155
  store i64 %157, ptr %154, align 8
  br label %160

158:                                              ; preds = %139
  %159 = sub nsw i64 0, %141
  br label %160

160:                                              ; preds = %149, %158
  %161 = phi i64 [ %159, %158 ], [ %157, %149 ]
  %162 = icmp eq i64 %147, %161
  br i1 %162, label %175, label %163

163:                                              ; preds = %160
  %164 = getelementptr inbounds i8, ptr %93, i64 40
  %165 = load ptr, ptr %164, align 8
  %166 = add nsw i64 %161, %145
  %167 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %13, i64 noundef 512, ptr noundef nonnull @.str.7, ptr noundef %165, i64 noundef %166, i64 noundef %146)
  store i64 32, ptr %14, align 8
  store ptr null, ptr %60, align 8
  store ptr %13, ptr %61, align 8
  store i32 3, ptr %62, align 8
  %168 = load ptr, ptr %53, align 8
  %169 = getelementptr inbounds i8, ptr %168, i64 48
  %170 = load ptr, ptr %169, align 8
  %171 = call ptr %170(ptr noundef nonnull %14)
  br label %172

172:                                              ; preds = %101, %113, %131, %163
  %173 = phi ptr [ %108, %101 ], [ %120, %113 ], [ %138, %131 ], [ %171, %163 ]
  %174 = icmp eq ptr %173, null
  br i1 %174, label %175, label %670

175:                                              ; preds = %160, %172
  %176 = getelementptr inbounds i8, ptr %91, i64 24
  %177 = load ptr, ptr %176, align 8
  %178 = getelementptr inbounds ptr, ptr %48, i64 %88
  store ptr %177, ptr %178, align 8
  %179 = add nuw nsw i64 %89, 1
  %180 = add nsw i64 %88, 1
  %181 = icmp eq i64 %179, %68
  br i1 %181, label %182, label %87

182:                                              ; preds = %175, %67
  %183 = phi i64 [ %69, %67 ], [ %180, %175 ]
  br i1 %71, label %66, label %184

184:                                              ; preds = %182
  %185 = icmp sgt i64 %35, 0
  br i1 %185, label %186, label %288

186:                                              ; preds = %184
  %187 = getelementptr inbounds i8, ptr %17, i64 16
  %188 = getelementptr inbounds i8, ptr %17, i64 8
  %189 = getelementptr inbounds i8, ptr %6, i64 8
  %190 = getelementptr inbounds i8, ptr %6, i64 24
  %191 = getelementptr inbounds i8, ptr %6, i64 32
  br label %192

192:                                              ; preds = %186, %285
  %193 = phi i64 [ 0, %186 ], [ %286, %285 ]
  %194 = load ptr, ptr %49, align 8
  %195 = getelementptr inbounds %struct.Entry, ptr %194, i64 %193
  %196 = getelementptr inbounds ptr, ptr %48, i64 %193
  %197 = load ptr, ptr %196, align 8
  %198 = getelementptr inbounds i8, ptr %195, i64 32
  %199 = load i64, ptr %198, align 8
  switch i64 %199, label %285 [
    i64 1, label %200
    i64 4, label %200
  ]

200:                                              ; preds = %192, %192
  %201 = load i64, ptr %187, align 8
  %202 = load i64, ptr %188, align 8
  %203 = load i64, ptr %17, align 8
  %204 = icmp eq i64 %199, 4
  %205 = getelementptr inbounds i8, ptr %195, i64 16
  %206 = load i64, ptr %205, align 8
  %207 = icmp eq i64 %206, 4
  %208 = or i1 %204, %207
  %209 = or i64 %206, %201
  %210 = icmp sgt i64 %209, -1
  %211 = and i1 %210, %208
  %212 = select i1 %211, i64 %201, i64 %202
  %213 = icmp sgt i64 %206, -1
  br i1 %213, label %224, label %214

214:                                              ; preds = %200
  %215 = icmp eq i64 %199, 3
  br i1 %215, label %216, label %220

216:                                              ; preds = %214
  %217 = getelementptr inbounds i8, ptr %195, i64 24
  %218 = load i64, ptr %217, align 8
  %219 = xor i64 %206, -1
  br label %224

220:                                              ; preds = %214
  %221 = sub nsw i64 0, %206
  %222 = getelementptr inbounds i8, ptr %195, i64 24
  %223 = load i64, ptr %222, align 8
  br label %224

224:                                              ; preds = %220, %216, %200
  %225 = phi i64 [ %203, %200 ], [ %218, %216 ], [ %221, %220 ]
  %226 = phi i64 [ %212, %200 ], [ %219, %216 ], [ %223, %220 ]
  store ptr %197, ptr %6, align 8
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %189, i8 0, i64 16, i1 false)
  store i64 %226, ptr %190, align 8
  store i64 0, ptr %191, align 8
  %227 = icmp slt i64 %225, 480000
  br i1 %227, label %228, label %274

228:                                              ; preds = %224
  %229 = trunc i64 %226 to i32
  %230 = icmp sgt i64 %225, 0
  br i1 %230, label %231, label %278

231:                                              ; preds = %228
  %232 = icmp ult i64 %225, 8
  br i1 %232, label %233, label %236

233:                                              ; preds = %256, %231
  %234 = phi i64 [ 0, %231 ], [ %237, %256 ]
  %235 = phi i32 [ 0, %231 ], [ %258, %256 ]
  br label %263

236:                                              ; preds = %231
  %237 = and i64 %225, 9223372036854775800
  %238 = insertelement <4 x i32> poison, i32 %229, i64 0
  %239 = shufflevector <4 x i32> %238, <4 x i32> poison, <4 x i32> zeroinitializer
  br label %240

240:                                              ; preds = %240, %236
  %241 = phi i64 [ 0, %236 ], [ %254, %240 ]
  %242 = phi <4 x i32> [ zeroinitializer, %236 ], [ %252, %240 ]
  %243 = phi <4 x i32> [ zeroinitializer, %236 ], [ %253, %240 ]
  %244 = getelementptr inbounds i32, ptr %197, i64 %241
  %245 = getelementptr inbounds i8, ptr %244, i64 16
  %246 = load <4 x i32>, ptr %244, align 4
  %247 = load <4 x i32>, ptr %245, align 4
  %248 = icmp uge <4 x i32> %246, %239
  %249 = icmp uge <4 x i32> %247, %239
  %250 = zext <4 x i1> %248 to <4 x i32>
  %251 = zext <4 x i1> %249 to <4 x i32>
  %252 = or <4 x i32> %242, %250
  %253 = or <4 x i32> %243, %251
  %254 = add nuw i64 %241, 8
  %255 = icmp eq i64 %254, %237
  br i1 %255, label %256, label %240

256:                                              ; preds = %240
  %257 = or <4 x i32> %253, %252
  %258 = call i32 @llvm.vector.reduce.or.v4i32(<4 x i32> %257)
  %259 = icmp eq i64 %225, %237
  br i1 %259, label %260, label %233

260:                                              ; preds = %263, %256
  %261 = phi i32 [ %258, %256 ], [ %270, %263 ]
  %262 = icmp eq i32 %261, 0
  br i1 %262, label %278, label %273

263:                                              ; preds = %233, %263
  %264 = phi i64 [ %271, %263 ], [ %234, %233 ]
  %265 = phi i32 [ %270, %263 ], [ %235, %233 ]
  %266 = getelementptr inbounds i32, ptr %197, i64 %264
  %267 = load i32, ptr %266, align 4
  %268 = icmp uge i32 %267, %229
  %269 = zext i1 %268 to i32
  %270 = or i32 %265, %269
  %271 = add nuw nsw i64 %264, 1
  %272 = icmp eq i64 %271, %225
  br i1 %272, label %260, label %263

273:                                              ; preds = %260
  store atomic i64 1, ptr %191 seq_cst, align 8
  br label %278

274:                                              ; preds = %224
  %275 = lshr i64 %225, 3
  %276 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_range, ptr noundef nonnull %6, i64 noundef %225, i64 noundef 0, i64 noundef 0, i64 noundef %275)
  %277 = icmp eq i64 %276, 0
  br i1 %277, label %278, label %282

278:                                              ; preds = %274, %273, %260, %228
  %279 = load atomic i64, ptr %191 seq_cst, align 8
  %280 = icmp eq i64 %279, 0
  br i1 %280, label %281, label %282

281:                                              ; preds = %278
  br label %285

282:                                              ; preds = %274, %278
  %283 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %195, ptr noundef %197, i64 noundef %225, i64 noundef %226)
  %284 = icmp eq ptr %283, null
  br i1 %284, label %285, label %670

285:                                              ; preds = %192, %281, %282
  %286 = add nuw nsw i64 %193, 1
  %287 = icmp slt i64 %286, %35
  br i1 %287, label %192, label %288

288:                                              ; preds = %285, %184
  %289 = getelementptr inbounds i8, ptr %1, i64 40
  %290 = load i64, ptr %289, align 8
  %291 = icmp sgt i64 %290, 0
  br i1 %291, label %292, label %558

292:                                              ; preds = %288
  %293 = getelementptr inbounds i8, ptr %1, i64 48
  %294 = getelementptr inbounds i8, ptr %17, i64 8
  %295 = getelementptr inbounds i8, ptr %17, i64 16
  %296 = getelementptr inbounds i8, ptr %3, i64 8
  %297 = getelementptr inbounds i8, ptr %3, i64 16
  %298 = getelementptr inbounds i8, ptr %3, i64 24
  %299 = getelementptr inbounds i8, ptr %3, i64 32
  %300 = getelementptr inbounds i8, ptr %5, i64 8
  %301 = getelementptr inbounds i8, ptr %5, i64 16
  %302 = getelementptr inbounds i8, ptr %5, i64 24
  br label %303

303:                                              ; preds = %292, %554
  %304 = phi i64 [ 0, %292 ], [ %555, %554 ]
  %305 = load ptr, ptr %49, align 8
  %306 = load ptr, ptr %293, align 8
  %307 = getelementptr inbounds %struct.Order, ptr %306, i64 %304
  %308 = load i64, ptr %17, align 8
  %309 = load i64, ptr %294, align 8
  %310 = load i64, ptr %295, align 8
  %311 = load i64, ptr %307, align 8
  %312 = getelementptr inbounds ptr, ptr %48, i64 %311
  %313 = load ptr, ptr %312, align 8
  %314 = getelementptr inbounds i8, ptr %307, i64 8
  %315 = load i64, ptr %314, align 8
  %316 = getelementptr inbounds ptr, ptr %48, i64 %315
  %317 = load ptr, ptr %316, align 8
  %318 = getelementptr inbounds i8, ptr %307, i64 16
  %319 = load i64, ptr %318, align 8
  %320 = getelementptr inbounds ptr, ptr %48, i64 %319
  %321 = load ptr, ptr %320, align 8
  %322 = getelementptr inbounds %struct.Entry, ptr %305, i64 %311
  %323 = getelementptr inbounds i8, ptr %322, i64 32
  %324 = load i64, ptr %323, align 8
  %325 = icmp eq i64 %324, 4
  %326 = getelementptr inbounds i8, ptr %322, i64 16
  %327 = load i64, ptr %326, align 8
  %328 = icmp eq i64 %327, 4
  %329 = or i1 %325, %328
  %330 = or i64 %327, %310
  %331 = icmp sgt i64 %330, -1
  %332 = select i1 %331, i1 %329, i1 false
  %333 = select i1 %332, i64 %310, i64 %309
  %334 = icmp sgt i64 %327, -1
  br i1 %334, label %345, label %335

335:                                              ; preds = %303
  %336 = icmp eq i64 %324, 3
  br i1 %336, label %337, label %341

337:                                              ; preds = %335
  %338 = getelementptr inbounds i8, ptr %322, i64 24
  %339 = load i64, ptr %338, align 8
  %340 = xor i64 %327, -1
  br label %345

341:                                              ; preds = %335
  %342 = sub nsw i64 0, %327
  %343 = getelementptr inbounds i8, ptr %322, i64 24
  %344 = load i64, ptr %343, align 8
  br label %345

345:                                              ; preds = %341, %337, %303
  %346 = phi i64 [ %308, %303 ], [ %339, %337 ], [ %342, %341 ]
  %347 = phi i64 [ %333, %303 ], [ %340, %337 ], [ %344, %341 ]
  %348 = getelementptr inbounds %struct.Entry, ptr %305, i64 %319
  %349 = getelementptr inbounds i8, ptr %348, i64 32
  %350 = load i64, ptr %349, align 8
  %351 = icmp eq i64 %350, 4
  %352 = getelementptr inbounds i8, ptr %348, i64 16
  %353 = load i64, ptr %352, align 8
  %354 = icmp eq i64 %353, 4
  %355 = or i1 %351, %354
  %356 = or i64 %353, %310
  %357 = icmp sgt i64 %356, -1
  %358 = select i1 %357, i1 %355, i1 false
  %359 = select i1 %358, i64 %310, i64 %347
  %360 = icmp sgt i64 %353, -1
  br i1 %360, label %368, label %361

361:                                              ; preds = %345
  %362 = icmp eq i64 %350, 3
  br i1 %362, label %363, label %365

363:                                              ; preds = %361
  %364 = xor i64 %353, -1
  br label %368

365:                                              ; preds = %361
  %366 = getelementptr inbounds i8, ptr %348, i64 24
  %367 = load i64, ptr %366, align 8
  br label %368

368:                                              ; preds = %365, %363, %345
  %369 = phi i64 [ %359, %345 ], [ %364, %363 ], [ %367, %365 ]
  store ptr %313, ptr %3, align 8
  store ptr %317, ptr %296, align 8
  store ptr %321, ptr %297, align 8
  store i64 %346, ptr %298, align 8
  store i64 0, ptr %299, align 8
  %370 = icmp slt i64 %346, 480000
  br i1 %370, label %371, label %417

371:                                              ; preds = %368
  %372 = trunc i64 %346 to i32
  %373 = icmp sgt i64 %346, 0
  br i1 %373, label %374, label %421

374:                                              ; preds = %371
  %375 = icmp ult i64 %346, 8
  br i1 %375, label %376, label %379

376:                                              ; preds = %399, %374
  %377 = phi i64 [ 0, %374 ], [ %380, %399 ]
  %378 = phi i32 [ 0, %374 ], [ %401, %399 ]
  br label %406

379:                                              ; preds = %374
  %380 = and i64 %346, 9223372036854775800
  %381 = insertelement <4 x i32> poison, i32 %372, i64 0
  %382 = shufflevector <4 x i32> %381, <4 x i32> poison, <4 x i32> zeroinitializer
  br label %383

383:                                              ; preds = %383, %379
  %384 = phi i64 [ 0, %379 ], [ %397, %383 ]
  %385 = phi <4 x i32> [ zeroinitializer, %379 ], [ %395, %383 ]
  %386 = phi <4 x i32> [ zeroinitializer, %379 ], [ %396, %383 ]
  %387 = getelementptr inbounds i32, ptr %313, i64 %384
  %388 = getelementptr inbounds i8, ptr %387, i64 16
  %389 = load <4 x i32>, ptr %387, align 4
  %390 = load <4 x i32>, ptr %388, align 4
  %391 = icmp uge <4 x i32> %389, %382
  %392 = icmp uge <4 x i32> %390, %382
  %393 = zext <4 x i1> %391 to <4 x i32>
  %394 = zext <4 x i1> %392 to <4 x i32>
  %395 = or <4 x i32> %385, %393
  %396 = or <4 x i32> %386, %394
  %397 = add nuw i64 %384, 8
  %398 = icmp eq i64 %397, %380
  br i1 %398, label %399, label %383

399:                                              ; preds = %383
  %400 = or <4 x i32> %396, %395
  %401 = call i32 @llvm.vector.reduce.or.v4i32(<4 x i32> %400)
  %402 = icmp eq i64 %346, %380
  br i1 %402, label %403, label %376

403:                                              ; preds = %406, %399
  %404 = phi i32 [ %401, %399 ], [ %413, %406 ]
  %405 = icmp eq i32 %404, 0
  br i1 %405, label %421, label %416

406:                                              ; preds = %376, %406
  %407 = phi i64 [ %414, %406 ], [ %377, %376 ]
  %408 = phi i32 [ %413, %406 ], [ %378, %376 ]
  %409 = getelementptr inbounds i32, ptr %313, i64 %407
  %410 = load i32, ptr %409, align 4
  %411 = icmp uge i32 %410, %372
  %412 = zext i1 %411 to i32
  %413 = or i32 %408, %412
  %414 = add nuw nsw i64 %407, 1
  %415 = icmp eq i64 %414, %346
  br i1 %415, label %403, label %406

416:                                              ; preds = %403
  store atomic i64 1, ptr %299 seq_cst, align 8
  br label %421

417:                                              ; preds = %368
  %418 = lshr i64 %346, 3
  %419 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_range, ptr noundef nonnull %3, i64 noundef %346, i64 noundef 0, i64 noundef 0, i64 noundef %418)
  %420 = icmp eq i64 %419, 0
  br i1 %420, label %421, label %499

421:                                              ; preds = %417, %416, %403, %371
  %422 = load atomic i64, ptr %299 seq_cst, align 8
  %423 = icmp eq i64 %422, 0
  br i1 %423, label %424, label %499

424:                                              ; preds = %421
  %425 = add nsw i64 %369, %346
  %426 = icmp slt i64 %425, 120000
  br i1 %426, label %427, label %484

427:                                              ; preds = %424
  %428 = icmp sgt i64 %369, 0
  br i1 %428, label %429, label %488

429:                                              ; preds = %427
  %430 = load ptr, ptr %297, align 8
  %431 = load i32, ptr %430, align 4
  %432 = getelementptr inbounds i8, ptr %430, i64 4
  %433 = load i32, ptr %432, align 4
  %434 = icmp slt i32 %431, 0
  %435 = icmp slt i32 %433, %431
  %436 = select i1 %434, i1 true, i1 %435
  br i1 %436, label %483, label %437

437:                                              ; preds = %429
  %438 = load i64, ptr %298, align 8
  %439 = load ptr, ptr %3, align 8
  %440 = load ptr, ptr %296, align 8
  br label %441

441:                                              ; preds = %473, %437
  %442 = phi i32 [ %433, %437 ], [ %476, %473 ]
  %443 = phi i64 [ 1, %437 ], [ %474, %473 ]
  %444 = phi i64 [ 0, %437 ], [ %443, %473 ]
  %445 = phi i32 [ %431, %437 ], [ %442, %473 ]
  %446 = sext i32 %442 to i64
  %447 = icmp slt i64 %438, %446
  br i1 %447, label %483, label %448

448:                                              ; preds = %441
  %449 = icmp slt i32 %445, %442
  br i1 %449, label %450, label %480

450:                                              ; preds = %448
  %451 = zext nneg i32 %445 to i64
  br label %452

452:                                              ; preds = %452, %450
  %453 = phi i32 [ %466, %452 ], [ 0, %450 ]
  %454 = phi i64 [ %467, %452 ], [ %451, %450 ]
  %455 = phi i64 [ %458, %452 ], [ -1, %450 ]
  %456 = getelementptr inbounds i32, ptr %439, i64 %454
  %457 = load i32, ptr %456, align 4
  %458 = sext i32 %457 to i64
  %459 = getelementptr inbounds i32, ptr %440, i64 %458
  %460 = load i32, ptr %459, align 4
  %461 = sext i32 %460 to i64
  %462 = icmp ne i64 %444, %461
  %463 = icmp sge i64 %455, %458
  %464 = or i1 %463, %462
  %465 = zext i1 %464 to i32
  %466 = or i32 %453, %465
  %467 = add nuw nsw i64 %454, 1
  %468 = icmp slt i64 %467, %446
  br i1 %468, label %452, label %469

469:                                              ; preds = %452
  %470 = icmp slt i64 %443, %369
  %471 = icmp eq i32 %466, 0
  %472 = select i1 %470, i1 %471, i1 false
  br i1 %472, label %473, label %482

473:                                              ; preds = %480, %469
  %474 = add nuw nsw i64 %443, 1
  %475 = getelementptr inbounds i32, ptr %430, i64 %474
  %476 = load i32, ptr %475, align 4
  %477 = icmp slt i32 %442, 0
  %478 = icmp slt i32 %476, %442
  %479 = select i1 %477, i1 true, i1 %478
  br i1 %479, label %483, label %441

480:                                              ; preds = %448
  %481 = icmp slt i64 %443, %369
  br i1 %481, label %473, label %488

482:                                              ; preds = %469
  br i1 %471, label %488, label %483

483:                                              ; preds = %473, %441, %482, %429
  store atomic i64 1, ptr %299 seq_cst, align 8
  br label %488

484:                                              ; preds = %424
  %485 = lshr i64 %425, 1
  %486 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_order, ptr noundef nonnull %3, i64 noundef %369, i64 noundef 0, i64 noundef 0, i64 noundef %485)
  %487 = icmp eq i64 %486, 0
  br i1 %487, label %488, label %499

488:                                              ; preds = %480, %484, %483, %482, %427
  %489 = load atomic i64, ptr %299 seq_cst, align 8
  %490 = icmp eq i64 %489, 0
  br i1 %490, label %491, label %499

491:                                              ; preds = %488
  %492 = load i32, ptr %321, align 4
  %493 = icmp eq i32 %492, 0
  br i1 %493, label %494, label %499

494:                                              ; preds = %491
  %495 = getelementptr inbounds i32, ptr %321, i64 %369
  %496 = load i32, ptr %495, align 4
  %497 = sext i32 %496 to i64
  %498 = icmp eq i64 %346, %497
  br i1 %498, label %550, label %499

499:                                              ; preds = %494, %491, %488, %484, %421, %417
  %500 = load i64, ptr %318, align 8
  %501 = getelementptr inbounds %struct.Entry, ptr %305, i64 %500
  %502 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %501, ptr noundef %321, i64 noundef %346, i64 noundef %369)
  %503 = icmp eq ptr %502, null
  br i1 %503, label %505, label %504

504:                                              ; preds = %499
  br label %670

505:                                              ; preds = %499
  %506 = load i64, ptr %307, align 8
  %507 = getelementptr inbounds %struct.Entry, ptr %305, i64 %506
  %508 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %507, ptr noundef %313, i64 noundef %346, i64 noundef %369)
  %509 = icmp ne ptr %508, null
  %510 = icmp slt i64 %369, 1
  %511 = select i1 %509, i1 true, i1 %510
  br i1 %511, label %551, label %512

512:                                              ; preds = %505
  %513 = load i32, ptr %321, align 4
  br label %516

514:                                              ; preds = %547, %516
  %515 = icmp eq i64 %519, %369
  br i1 %515, label %550, label %516

516:                                              ; preds = %514, %512
  %517 = phi i32 [ %521, %514 ], [ %513, %512 ]
  %518 = phi i64 [ %519, %514 ], [ 0, %512 ]
  %519 = add nuw nsw i64 %518, 1
  %520 = getelementptr inbounds i32, ptr %321, i64 %519
  %521 = load i32, ptr %520, align 4
  %522 = sext i32 %521 to i64
  %523 = icmp slt i32 %517, %521
  br i1 %523, label %524, label %514

524:                                              ; preds = %516
  %525 = sext i32 %517 to i64
  br label %526

526:                                              ; preds = %547, %524
  %527 = phi i64 [ %548, %547 ], [ %525, %524 ]
  %528 = getelementptr inbounds i32, ptr %313, i64 %527
  %529 = load i32, ptr %528, align 4
  %530 = sext i32 %529 to i64
  %531 = getelementptr inbounds i32, ptr %317, i64 %530
  %532 = load i32, ptr %531, align 4
  %533 = sext i32 %532 to i64
  %534 = icmp eq i64 %518, %533
  br i1 %534, label %547, label %535

535:                                              ; preds = %526
  %536 = load i64, ptr %307, align 8
  %537 = getelementptr inbounds %struct.Entry, ptr %305, i64 %536, i32 5
  %538 = load ptr, ptr %537, align 8
  %539 = load i64, ptr %314, align 8
  %540 = getelementptr inbounds %struct.Entry, ptr %305, i64 %539, i32 5
  %541 = load ptr, ptr %540, align 8
  %542 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %4, i64 noundef 512, ptr noundef nonnull @.str.11, ptr noundef %538, i64 noundef %527, i64 noundef %530, ptr noundef %541, i64 noundef %530, i64 noundef %533, i64 noundef %518)
  store i64 32, ptr %5, align 8
  store ptr null, ptr %300, align 8
  store ptr %4, ptr %301, align 8
  store i32 3, ptr %302, align 8
  %543 = load ptr, ptr %53, align 8
  %544 = getelementptr inbounds i8, ptr %543, i64 48
  %545 = load ptr, ptr %544, align 8
  %546 = call ptr %545(ptr noundef nonnull %5)
  br label %551

547:                                              ; preds = %526
  %548 = add nsw i64 %527, 1
  %549 = icmp eq i64 %548, %522
  br i1 %549, label %514, label %526

550:                                              ; preds = %514, %494
  br label %554

551:                                              ; preds = %505, %535
  %552 = phi ptr [ %546, %535 ], [ %508, %505 ]
  %553 = icmp eq ptr %552, null
  br i1 %553, label %554, label %670

554:                                              ; preds = %550, %551
  %555 = add nuw nsw i64 %304, 1
  %556 = load i64, ptr %289, align 8
  %557 = icmp slt i64 %555, %556
  br i1 %557, label %303, label %558

558:                                              ; preds = %554, %288
  %559 = icmp sgt i64 %37, 0
  br i1 %559, label %560, label %563

560:                                              ; preds = %558
  %561 = load ptr, ptr %16, align 8
  %562 = load i32, ptr @eqfuse_advice, align 4
  br label %576

563:                                              ; preds = %607, %558
  %564 = getelementptr inbounds i8, ptr %1, i64 16
  %565 = load i64, ptr %564, align 8
  %566 = icmp sgt i64 %565, 0
  br i1 %566, label %567, label %670

567:                                              ; preds = %563
  %568 = getelementptr inbounds i8, ptr %1, i64 32
  %569 = load i64, ptr %17, align 8
  %570 = getelementptr inbounds i8, ptr %17, i64 16
  %571 = load i64, ptr %570, align 8
  %572 = getelementptr inbounds i8, ptr %17, i64 8
  %573 = load i64, ptr %572, align 8
  %574 = icmp slt i64 %569, 0
  %575 = select i1 %574, i64 1, i64 %569
  br label %615

576:                                              ; preds = %560, %607
  %577 = phi i32 [ %562, %560 ], [ %608, %607 ]
  %578 = phi i64 [ 0, %560 ], [ %609, %607 ]
  %579 = getelementptr inbounds ptr, ptr %561, i64 %578
  %580 = load ptr, ptr %579, align 8
  %581 = getelementptr inbounds i8, ptr %580, i64 40
  %582 = load ptr, ptr %581, align 8
  %583 = load i64, ptr %582, align 8
  %584 = getelementptr inbounds i8, ptr %582, i64 8
  %585 = load i64, ptr %584, align 8
  %586 = mul nsw i64 %585, %583
  %587 = getelementptr inbounds i8, ptr %580, i64 16
  %588 = load i32, ptr %587, align 8
  %589 = icmp eq i32 %588, 12
  %590 = select i1 %589, i64 3, i64 2
  %591 = shl i64 %586, %590
  %592 = icmp sgt i64 %591, 4194303
  %593 = icmp ne i32 %577, 0
  %594 = select i1 %592, i1 %593, i1 false
  br i1 %594, label %595, label %607

595:                                              ; preds = %576
  %596 = getelementptr inbounds i8, ptr %580, i64 24
  %597 = load ptr, ptr %596, align 8
  %598 = ptrtoint ptr %597 to i64
  %599 = add nsw i64 %598, 2097151
  %600 = and i64 %599, -2097152
  %601 = inttoptr i64 %600 to ptr
  %602 = add nsw i64 %591, %598
  %603 = sub i64 %602, %600
  %604 = and i64 %603, -2097152
  %605 = call i32 @madvise(ptr noundef %601, i64 noundef %604, i32 noundef %577)
  %606 = load i32, ptr @eqfuse_advice, align 4
  br label %607

607:                                              ; preds = %576, %595
  %608 = phi i32 [ %577, %576 ], [ %606, %595 ]
  %609 = add nuw nsw i64 %578, 1
  %610 = icmp eq i64 %609, %37
  br i1 %610, label %563, label %576

611:                                              ; preds = %644
  %612 = add nuw nsw i64 %616, 1
  %613 = load i64, ptr %564, align 8
  %614 = icmp slt i64 %612, %613
  br i1 %614, label %615, label %670

615:                                              ; preds = %567, %611
  %616 = phi i64 [ 0, %567 ], [ %612, %611 ]
  %617 = load ptr, ptr %568, align 8
  %618 = getelementptr inbounds %struct.Pass, ptr %617, i64 %616
  %619 = getelementptr inbounds i8, ptr %618, i64 8
  %620 = load i64, ptr %619, align 8
  %621 = icmp slt i64 %620, 0
  %622 = getelementptr inbounds i8, ptr %618, i64 48
  %623 = load i64, ptr %622, align 8
  %624 = icmp eq i64 %623, 0
  %625 = select i1 %624, i64 %573, i64 %571
  br i1 %621, label %634, label %626

626:                                              ; preds = %615
  %627 = add nsw i64 %620, -1
  %628 = add i64 %627, %569
  %629 = sdiv i64 %628, %620
  %630 = getelementptr inbounds i8, ptr %618, i64 40
  %631 = load i64, ptr %630, align 8
  %632 = icmp sgt i64 %631, 0
  %633 = select i1 %632, i64 %631, i64 %629
  br label %644

634:                                              ; preds = %615
  %635 = mul i64 %620, %625
  %636 = sub i64 0, %635
  %637 = getelementptr inbounds i8, ptr %618, i64 40
  %638 = load i64, ptr %637, align 8
  %639 = icmp sgt i64 %638, 0
  %640 = select i1 %639, i64 %638, i64 %636
  %641 = getelementptr inbounds i8, ptr %618, i64 24
  %642 = load i64, ptr %641, align 8
  %643 = mul nsw i64 %642, %625
  br label %644

644:                                              ; preds = %626, %634
  %645 = phi i64 [ %640, %634 ], [ %633, %626 ]
  %646 = phi i1 [ %639, %634 ], [ %632, %626 ]
  %647 = phi i64 [ %643, %634 ], [ 0, %626 ]
  %648 = getelementptr inbounds i8, ptr %618, i64 16
  %649 = load i64, ptr %648, align 8
  %650 = mul nsw i64 %649, %575
  %651 = add nsw i64 %647, %650
  %652 = and i1 %621, %646
  %653 = select i1 %652, i64 %625, i64 %569
  %654 = load ptr, ptr %618, align 8
  %655 = getelementptr inbounds i8, ptr %618, i64 32
  %656 = load i64, ptr %655, align 8
  %657 = call fastcc i64 @share(ptr noundef %0, ptr noundef %654, ptr noundef nonnull %48, i64 noundef %645, i64 noundef %653, i64 noundef %656, i64 noundef %651)
  %658 = icmp eq i64 %657, 0
  br i1 %658, label %611, label %659

659:                                              ; preds = %644
  %660 = getelementptr inbounds i8, ptr %618, i64 32
  %661 = load i64, ptr %660, align 8
  %662 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %20, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %661)
  store i64 32, ptr %21, align 8
  %663 = getelementptr inbounds i8, ptr %21, i64 8
  store ptr null, ptr %663, align 8
  %664 = getelementptr inbounds i8, ptr %21, i64 16
  store ptr %20, ptr %664, align 8
  %665 = getelementptr inbounds i8, ptr %21, i64 24
  store i32 8, ptr %665, align 8
  %666 = load ptr, ptr %53, align 8
  %667 = getelementptr inbounds i8, ptr %666, i64 48
  %668 = load ptr, ptr %667, align 8
  %669 = call ptr %668(ptr noundef nonnull %21)
  br label %670

670:                                              ; preds = %172, %282, %551, %611, %504, %563, %659, %75
  %671 = phi ptr [ %86, %75 ], [ %669, %659 ], [ null, %563 ], [ %502, %504 ], [ null, %611 ], [ %552, %551 ], [ %283, %282 ], [ %173, %172 ]
  call void @llvm.stackrestore.p0(ptr %47)
  br label %672

672:                                              ; preds = %670, %29
  %673 = phi ptr [ null, %29 ], [ %671, %670 ]
  ret ptr %673
}



declare ptr @llvm.stacksave.p0()

declare noundef i32 @snprintf(ptr noalias noundef writeonly, i64 noundef, ptr noundef readonly, ...) local_unnamed_addr

define internal fastcc i64 @share(ptr noundef readonly %0, ptr noundef %1, ptr noundef %2, i64 noundef %3, i64 noundef %4, i64 noundef %5, i64 noundef %6) unnamed_addr {
  %8 = alloca %struct.XLA_FFI_Error_Destroy_Args, align 8
  %9 = alloca %struct.XLA_FFI_Error_Destroy_Args, align 8
  %10 = alloca i64, align 8
  %11 = alloca %struct.XLA_FFI_ThreadPool_NumThreads_Args, align 8
  %12 = alloca %struct.XLA_FFI_ThreadPool_Schedule_Args, align 8
  %13 = getelementptr inbounds i8, ptr %0, i64 16
  %14 = load ptr, ptr %13, align 8
  %15 = load i64, ptr @eqfuse_limit, align 8
  %16 = tail call noundef i64 @llvm.smin.i64(i64 %15, i64 %3)
  %17 = add nsw i64 %16, -1
  %18 = sdiv i64 %6, 30000
  %19 = tail call noundef i64 @llvm.smin.i64(i64 %17, i64 %18)
  %20 = icmp sgt i64 %19, 0
  br i1 %20, label %21, label %41

21:                                               ; preds = %7
  store i64 0, ptr %10, align 8
  store i64 32, ptr %11, align 8
  %22 = getelementptr inbounds i8, ptr %11, i64 8
  store ptr null, ptr %22, align 8
  %23 = getelementptr inbounds i8, ptr %11, i64 16
  %24 = getelementptr inbounds i8, ptr %0, i64 24
  %25 = load ptr, ptr %24, align 8
  store ptr %25, ptr %23, align 8
  %26 = getelementptr inbounds i8, ptr %11, i64 24
  store ptr %10, ptr %26, align 8
  %27 = getelementptr inbounds i8, ptr %14, i64 144
  %28 = load ptr, ptr %27, align 8
  %29 = call ptr %28(ptr noundef nonnull %11)
  %30 = icmp eq ptr %29, null
  br i1 %30, label %31, label %33

31:                                               ; preds = %21
  %32 = load i64, ptr %10, align 8
  br label %38

33:                                               ; preds = %21
  store i64 24, ptr %9, align 8
  %34 = getelementptr inbounds i8, ptr %9, i64 8
  store ptr null, ptr %34, align 8
  %35 = getelementptr inbounds i8, ptr %9, i64 16
  store ptr %29, ptr %35, align 8
  %36 = getelementptr inbounds i8, ptr %14, i64 64
  %37 = load ptr, ptr %36, align 8
  call void %37(ptr noundef nonnull %9)
  br label %38

38:                                               ; preds = %31, %33
  %39 = phi i64 [ %32, %31 ], [ 0, %33 ]
  %40 = call noundef i64 @llvm.smin.i64(i64 %19, i64 %39)
  br label %41

41:                                               ; preds = %38, %7
  %42 = phi i64 [ %40, %38 ], [ %19, %7 ]
  %43 = call noalias dereferenceable_or_null(80) ptr @malloc(i64 noundef 80)
  %44 = icmp eq ptr %43, null
  br i1 %44, label %131, label %45

45:                                               ; preds = %41
  %46 = call i64 @llvm.smax.i64(i64 %42, i64 0)
  %47 = add nuw nsw i64 %46, 1
  %48 = shl nuw nsw i64 %47, 3
  %49 = add i64 %3, -1
  %50 = add i64 %49, %48
  %51 = sdiv i64 %50, %48
  store i64 %47, ptr %43, align 8
  %52 = getelementptr inbounds i8, ptr %43, i64 8
  %53 = getelementptr inbounds i8, ptr %43, i64 16
  %54 = getelementptr inbounds i8, ptr %43, i64 24
  %55 = getelementptr inbounds i8, ptr %43, i64 32
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(24) %52, i8 0, i64 24, i1 false)
  store i64 %3, ptr %55, align 8
  %56 = getelementptr inbounds i8, ptr %43, i64 40
  store i64 %51, ptr %56, align 8
  %57 = getelementptr inbounds i8, ptr %43, i64 48
  store i64 %4, ptr %57, align 8
  %58 = getelementptr inbounds i8, ptr %43, i64 56
  store i64 %5, ptr %58, align 8
  %59 = getelementptr inbounds i8, ptr %43, i64 64
  store ptr %1, ptr %59, align 8
  %60 = getelementptr inbounds i8, ptr %43, i64 72
  store ptr %2, ptr %60, align 8
  %61 = icmp sgt i64 %42, 0
  br i1 %61, label %62, label %72

62:                                               ; preds = %45
  %63 = getelementptr inbounds i8, ptr %12, i64 8
  %64 = getelementptr inbounds i8, ptr %12, i64 16
  %65 = getelementptr inbounds i8, ptr %0, i64 24
  %66 = getelementptr inbounds i8, ptr %12, i64 24
  %67 = getelementptr inbounds i8, ptr %12, i64 32
  %68 = getelementptr inbounds i8, ptr %14, i64 136
  %69 = getelementptr inbounds i8, ptr %8, i64 8
  %70 = getelementptr inbounds i8, ptr %8, i64 16
  %71 = getelementptr inbounds i8, ptr %14, i64 64
  br label %109

72:                                               ; preds = %118, %45
  %73 = atomicrmw add ptr @eqfuse_active, i64 1 seq_cst, align 8
  %74 = load i64, ptr %58, align 8
  %75 = add nsw i64 %74, 64
  %76 = call noalias ptr @malloc(i64 noundef %75)
  %77 = ptrtoint ptr %76 to i64
  %78 = add nsw i64 %77, 63
  %79 = and i64 %78, -64
  %80 = inttoptr i64 %79 to ptr
  %81 = load i64, ptr %56, align 8
  %82 = atomicrmw add ptr %52, i64 %81 seq_cst, align 8
  %83 = load i64, ptr %55, align 8
  %84 = icmp slt i64 %82, %83
  br i1 %84, label %85, label %106

85:                                               ; preds = %72
  %86 = icmp eq ptr %76, null
  br label %87

87:                                               ; preds = %99, %85
  %88 = phi i64 [ %83, %85 ], [ %104, %99 ]
  %89 = phi i64 [ %82, %85 ], [ %103, %99 ]
  %90 = load i64, ptr %56, align 8
  %91 = add nsw i64 %90, %89
  %92 = call i64 @llvm.smin.i64(i64 %91, i64 %88)
  br i1 %86, label %97, label %93

93:                                               ; preds = %87
  %94 = load ptr, ptr %59, align 8
  %95 = load ptr, ptr %60, align 8
  %96 = load i64, ptr %57, align 8
  call void %94(ptr noundef %95, i64 noundef %89, i64 noundef %92, i64 noundef %96, ptr noundef %80)
  br label %99

97:                                               ; preds = %87
  %98 = atomicrmw add ptr %54, i64 1 seq_cst, align 8
  br label %99

99:                                               ; preds = %97, %93
  %100 = sub nsw i64 %92, %89
  %101 = atomicrmw add ptr %53, i64 %100 seq_cst, align 8
  %102 = load i64, ptr %56, align 8
  %103 = atomicrmw add ptr %52, i64 %102 seq_cst, align 8
  %104 = load i64, ptr %55, align 8
  %105 = icmp slt i64 %103, %104
  br i1 %105, label %87, label %106

106:                                              ; preds = %99, %72
  call void @free(ptr noundef %76)
  %107 = load atomic i64, ptr %53 seq_cst, align 8
  %108 = icmp slt i64 %107, %3
  br i1 %108, label %121, label %125

109:                                              ; preds = %62, %118
  %110 = phi i64 [ 0, %62 ], [ %119, %118 ]
  store i64 40, ptr %12, align 8
  store ptr null, ptr %63, align 8
  %111 = load ptr, ptr %65, align 8
  store ptr %111, ptr %64, align 8
  store ptr @help, ptr %66, align 8
  store ptr %43, ptr %67, align 8
  %112 = load ptr, ptr %68, align 8
  %113 = call ptr %112(ptr noundef nonnull %12)
  %114 = icmp eq ptr %113, null
  br i1 %114, label %118, label %115

115:                                              ; preds = %109
  store i64 24, ptr %8, align 8
  store ptr null, ptr %69, align 8
  store ptr %113, ptr %70, align 8
  %116 = load ptr, ptr %71, align 8
  call void %116(ptr noundef nonnull %8)
  %117 = atomicrmw sub ptr %43, i64 1 seq_cst, align 8
  br label %118

118:                                              ; preds = %109, %115
  %119 = add nuw nsw i64 %110, 1
  %120 = icmp eq i64 %119, %42
  br i1 %120, label %72, label %109

121:                                              ; preds = %106, %121
  %122 = call i32 @sched_yield()
  %123 = load atomic i64, ptr %53 seq_cst, align 8
  %124 = icmp slt i64 %123, %3
  br i1 %124, label %121, label %125

125:                                              ; preds = %121, %106
  %126 = atomicrmw sub ptr @eqfuse_active, i64 1 seq_cst, align 8
  %127 = load atomic i64, ptr %54 seq_cst, align 8
  %128 = atomicrmw sub ptr %43, i64 1 seq_cst, align 8
  %129 = icmp eq i64 %128, 1
  br i1 %129, label %130, label %131

130:                                              ; preds = %125
  call void @free(ptr noundef nonnull %43)
  br label %131

131:                                              ; preds = %130, %125, %41
  %132 = phi i64 [ 1, %41 ], [ %127, %125 ], [ %127, %130 ]
  ret i64 %132
}

declare void @llvm.stackrestore.p0(ptr)

define internal void @in_range(ptr noundef %0, i64 noundef %1, i64 noundef %2, i64 %3, ptr readnone %4) {
  %6 = load ptr, ptr %0, align 8
  %7 = getelementptr inbounds i8, ptr %0, i64 24
  %8 = load i64, ptr %7, align 8
  %9 = trunc i64 %8 to i32
  %10 = icmp slt i64 %1, %2
  br i1 %10, label %11, label %58

11:                                               ; preds = %5
  %12 = sub i64 %2, %1
  %13 = icmp ult i64 %12, 8
  br i1 %13, label %14, label %17

14:                                               ; preds = %39, %11
  %15 = phi i64 [ %1, %11 ], [ %19, %39 ]
  %16 = phi i32 [ 0, %11 ], [ %41, %39 ]
  br label %46

17:                                               ; preds = %11
  %18 = and i64 %12, -8
  %19 = add i64 %18, %1
  %20 = insertelement <4 x i32> poison, i32 %9, i64 0
  %21 = shufflevector <4 x i32> %20, <4 x i32> poison, <4 x i32> zeroinitializer
  %22 = getelementptr i32, ptr %6, i64 %1
  br label %23

23:                                               ; preds = %23, %17
  %24 = phi i64 [ 0, %17 ], [ %37, %23 ]
  %25 = phi <4 x i32> [ zeroinitializer, %17 ], [ %35, %23 ]
  %26 = phi <4 x i32> [ zeroinitializer, %17 ], [ %36, %23 ]
  %27 = getelementptr i32, ptr %22, i64 %24
  %28 = getelementptr inbounds i8, ptr %27, i64 16
  %29 = load <4 x i32>, ptr %27, align 4
  %30 = load <4 x i32>, ptr %28, align 4
  %31 = icmp uge <4 x i32> %29, %21
  %32 = icmp uge <4 x i32> %30, %21
  %33 = zext <4 x i1> %31 to <4 x i32>
  %34 = zext <4 x i1> %32 to <4 x i32>
  %35 = or <4 x i32> %25, %33
  %36 = or <4 x i32> %26, %34
  %37 = add nuw i64 %24, 8
  %38 = icmp eq i64 %37, %18
  br i1 %38, label %39, label %23

39:                                               ; preds = %23
  %40 = or <4 x i32> %36, %35
  %41 = tail call i32 @llvm.vector.reduce.or.v4i32(<4 x i32> %40)
  %42 = icmp eq i64 %12, %18
  br i1 %42, label %43, label %14

43:                                               ; preds = %46, %39
  %44 = phi i32 [ %41, %39 ], [ %53, %46 ]
  %45 = icmp eq i32 %44, 0
  br i1 %45, label %58, label %56

46:                                               ; preds = %14, %46
  %47 = phi i64 [ %54, %46 ], [ %15, %14 ]
  %48 = phi i32 [ %53, %46 ], [ %16, %14 ]
  %49 = getelementptr inbounds i32, ptr %6, i64 %47
  %50 = load i32, ptr %49, align 4
  %51 = icmp uge i32 %50, %9
  %52 = zext i1 %51 to i32
  %53 = or i32 %48, %52
  %54 = add nsw i64 %47, 1
  %55 = icmp eq i64 %54, %2
  br i1 %55, label %43, label %46

56:                                               ; preds = %43
  %57 = getelementptr inbounds i8, ptr %0, i64 32
  store atomic i64 1, ptr %57 seq_cst, align 8
  br label %58

58:                                               ; preds = %5, %56, %43
  ret void
}

define internal fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %1, ptr noundef readonly %2, i64 noundef %3, i64 noundef %4) unnamed_addr {
  %6 = alloca [512 x i8], align 16
  %7 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %8 = alloca [512 x i8], align 16
  %9 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %10 = alloca [512 x i8], align 16
  %11 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %12 = alloca [512 x i8], align 16
  %13 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %14 = getelementptr inbounds i8, ptr %1, i64 32
  %15 = load i64, ptr %14, align 8
  switch i64 %15, label %80 [
    i64 1, label %16
    i64 4, label %16
    i64 2, label %16
  ]

16:                                               ; preds = %5, %5, %5
  %17 = icmp eq i64 %15, 2
  %18 = select i1 %17, i64 %3, i64 %4
  %19 = icmp sgt i64 %3, 0
  br i1 %19, label %20, label %41

20:                                               ; preds = %16, %26
  %21 = phi i64 [ %27, %26 ], [ 0, %16 ]
  %22 = getelementptr inbounds i32, ptr %2, i64 %21
  %23 = load i32, ptr %22, align 4
  %24 = sext i32 %23 to i64
  %25 = icmp ugt i64 %18, %24
  br i1 %25, label %26, label %29

26:                                               ; preds = %20
  %27 = add nuw nsw i64 %21, 1
  %28 = icmp eq i64 %27, %3
  br i1 %28, label %41, label %20

29:                                               ; preds = %20
  %30 = getelementptr inbounds i8, ptr %1, i64 40
  %31 = load ptr, ptr %30, align 8
  %32 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %6, i64 noundef 512, ptr noundef nonnull @.str.8, ptr noundef %31, i64 noundef %21, i64 noundef %24, i64 noundef %18)
  store i64 32, ptr %7, align 8
  %33 = getelementptr inbounds i8, ptr %7, i64 8
  store ptr null, ptr %33, align 8
  %34 = getelementptr inbounds i8, ptr %7, i64 16
  store ptr %6, ptr %34, align 8
  %35 = getelementptr inbounds i8, ptr %7, i64 24
  store i32 11, ptr %35, align 8
  %36 = getelementptr inbounds i8, ptr %0, i64 16
  %37 = load ptr, ptr %36, align 8
  %38 = getelementptr inbounds i8, ptr %37, i64 48
  %39 = load ptr, ptr %38, align 8
  %40 = call ptr %39(ptr noundef nonnull %7)
  br label %124

41:                                               ; preds = %26, %16
  br i1 %17, label %42, label %80

42:                                               ; preds = %41
  %43 = tail call noalias ptr @calloc(i64 noundef %3, i64 noundef 1)
  %44 = icmp eq ptr %43, null
  br i1 %44, label %46, label %45

45:                                               ; preds = %42
  br i1 %19, label %56, label %79

46:                                               ; preds = %42
  %47 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %3)
  store i64 32, ptr %9, align 8
  %48 = getelementptr inbounds i8, ptr %9, i64 8
  store ptr null, ptr %48, align 8
  %49 = getelementptr inbounds i8, ptr %9, i64 16
  store ptr %8, ptr %49, align 8
  %50 = getelementptr inbounds i8, ptr %9, i64 24
  store i32 8, ptr %50, align 8
  %51 = getelementptr inbounds i8, ptr %0, i64 16
  %52 = load ptr, ptr %51, align 8
  %53 = getelementptr inbounds i8, ptr %52, i64 48
  %54 = load ptr, ptr %53, align 8
  %55 = call ptr %54(ptr noundef nonnull %9)
  br label %124

56:                                               ; preds = %45, %76
  %57 = phi i64 [ %77, %76 ], [ 0, %45 ]
  %58 = getelementptr inbounds i32, ptr %2, i64 %57
  %59 = load i32, ptr %58, align 4
  %60 = sext i32 %59 to i64
  %61 = getelementptr inbounds i8, ptr %43, i64 %60
  %62 = load i8, ptr %61, align 1
  %63 = icmp eq i8 %62, 0
  br i1 %63, label %76, label %64

64:                                               ; preds = %56
  tail call void @free(ptr noundef nonnull %43)
  %65 = getelementptr inbounds i8, ptr %1, i64 40
  %66 = load ptr, ptr %65, align 8
  %67 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %10, i64 noundef 512, ptr noundef nonnull @.str.9, ptr noundef %66, i64 noundef %60)
  store i64 32, ptr %11, align 8
  %68 = getelementptr inbounds i8, ptr %11, i64 8
  store ptr null, ptr %68, align 8
  %69 = getelementptr inbounds i8, ptr %11, i64 16
  store ptr %10, ptr %69, align 8
  %70 = getelementptr inbounds i8, ptr %11, i64 24
  store i32 3, ptr %70, align 8
  %71 = getelementptr inbounds i8, ptr %0, i64 16
  %72 = load ptr, ptr %71, align 8
  %73 = getelementptr inbounds i8, ptr %72, i64 48
  %74 = load ptr, ptr %73, align 8
  %75 = call ptr %74(ptr noundef nonnull %11)
  br label %124

76:                                               ; preds = %56
  store i8 1, ptr %61, align 1
  %77 = add nuw nsw i64 %57, 1
  %78 = icmp eq i64 %77, %3
  br i1 %78, label %79, label %56

79:                                               ; preds = %76, %45
  tail call void @free(ptr noundef nonnull %43)
  br label %80

80:                                               ; preds = %5, %79, %41
  %81 = icmp ne i64 %15, 3
  %82 = icmp slt i64 %4, 0
  %83 = or i1 %81, %82
  br i1 %83, label %124, label %84

84:                                               ; preds = %80
  %85 = icmp eq i64 %4, 0
  %86 = select i1 %85, i64 %3, i64 0
  %87 = load i32, ptr %2, align 4
  %88 = sext i32 %87 to i64
  %89 = icmp sgt i64 %86, %88
  %90 = icmp sgt i32 %87, 0
  %91 = or i1 %89, %90
  br i1 %91, label %108, label %92

92:                                               ; preds = %84
  %93 = icmp eq i64 %4, 0
  br i1 %93, label %124, label %94

94:                                               ; preds = %92, %105
  %95 = phi i64 [ %101, %105 ], [ %88, %92 ]
  %96 = phi i64 [ %106, %105 ], [ 1, %92 ]
  %97 = icmp eq i64 %96, %4
  %98 = select i1 %97, i64 %3, i64 %95
  %99 = getelementptr inbounds i32, ptr %2, i64 %96
  %100 = load i32, ptr %99, align 4
  %101 = sext i32 %100 to i64
  %102 = icmp sgt i64 %98, %101
  %103 = icmp sgt i64 %101, %3
  %104 = or i1 %102, %103
  br i1 %104, label %108, label %105

105:                                              ; preds = %94
  %106 = add nuw i64 %96, 1
  %107 = icmp eq i64 %96, %4
  br i1 %107, label %124, label %94

108:                                              ; preds = %94, %84
  %109 = phi i64 [ 0, %84 ], [ %96, %94 ]
  %110 = phi i64 [ %86, %84 ], [ %98, %94 ]
  %111 = phi i64 [ 0, %84 ], [ %3, %94 ]
  %112 = phi i64 [ %88, %84 ], [ %101, %94 ]
  %113 = getelementptr inbounds i8, ptr %1, i64 40
  %114 = load ptr, ptr %113, align 8
  %115 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %12, i64 noundef 512, ptr noundef nonnull @.str.10, ptr noundef %114, i64 noundef %109, i64 noundef %112, i64 noundef %110, i64 noundef %111, i64 noundef %4)
  store i64 32, ptr %13, align 8
  %116 = getelementptr inbounds i8, ptr %13, i64 8
  store ptr null, ptr %116, align 8
  %117 = getelementptr inbounds i8, ptr %13, i64 16
  store ptr %12, ptr %117, align 8
  %118 = getelementptr inbounds i8, ptr %13, i64 24
  store i32 11, ptr %118, align 8
  %119 = getelementptr inbounds i8, ptr %0, i64 16
  %120 = load ptr, ptr %119, align 8
  %121 = getelementptr inbounds i8, ptr %120, i64 48
  %122 = load ptr, ptr %121, align 8
  %123 = call ptr %122(ptr noundef nonnull %13)
  br label %124

124:                                              ; preds = %105, %92, %64, %46, %80, %108, %29
  %125 = phi ptr [ %40, %29 ], [ %123, %108 ], [ null, %80 ], [ %75, %64 ], [ %55, %46 ], [ null, %92 ], [ null, %105 ]
  ret ptr %125
}

declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr

declare void @free(ptr allocptr noundef) local_unnamed_addr

define internal void @in_order(ptr noundef %0, i64 noundef %1, i64 noundef %2, i64 %3, ptr readnone %4) {
  %6 = icmp slt i64 %1, %2
  br i1 %6, label %7, label %69

7:                                                ; preds = %5
  %8 = getelementptr inbounds i8, ptr %0, i64 16
  %9 = load ptr, ptr %8, align 8
  %10 = getelementptr inbounds i8, ptr %0, i64 24
  %11 = getelementptr inbounds i8, ptr %0, i64 8
  %12 = getelementptr inbounds i32, ptr %9, i64 %1
  %13 = load i32, ptr %12, align 4
  %14 = add nsw i64 %1, 1
  %15 = getelementptr inbounds i32, ptr %9, i64 %14
  %16 = load i32, ptr %15, align 4
  %17 = icmp slt i32 %13, 0
  %18 = icmp slt i32 %16, %13
  %19 = select i1 %17, i1 true, i1 %18
  br i1 %19, label %67, label %20

20:                                               ; preds = %7
  %21 = load i64, ptr %10, align 8
  br label %22

22:                                               ; preds = %20, %56
  %23 = phi i32 [ %59, %56 ], [ %16, %20 ]
  %24 = phi i64 [ %57, %56 ], [ %14, %20 ]
  %25 = phi i64 [ %24, %56 ], [ %1, %20 ]
  %26 = phi i32 [ %23, %56 ], [ %13, %20 ]
  %27 = sext i32 %23 to i64
  %28 = zext nneg i32 %26 to i64
  %29 = icmp slt i64 %21, %27
  br i1 %29, label %67, label %30

30:                                               ; preds = %22
  %31 = icmp slt i32 %26, %23
  br i1 %31, label %32, label %63

32:                                               ; preds = %30
  %33 = load ptr, ptr %0, align 8
  %34 = load ptr, ptr %11, align 8
  br label %35

35:                                               ; preds = %32, %35
  %36 = phi i32 [ 0, %32 ], [ %49, %35 ]
  %37 = phi i64 [ %28, %32 ], [ %50, %35 ]
  %38 = phi i64 [ -1, %32 ], [ %41, %35 ]
  %39 = getelementptr inbounds i32, ptr %33, i64 %37
  %40 = load i32, ptr %39, align 4
  %41 = sext i32 %40 to i64
  %42 = getelementptr inbounds i32, ptr %34, i64 %41
  %43 = load i32, ptr %42, align 4
  %44 = sext i32 %43 to i64
  %45 = icmp ne i64 %25, %44
  %46 = icmp sge i64 %38, %41
  %47 = or i1 %46, %45
  %48 = zext i1 %47 to i32
  %49 = or i32 %36, %48
  %50 = add nuw nsw i64 %37, 1
  %51 = icmp slt i64 %50, %27
  br i1 %51, label %35, label %52

52:                                               ; preds = %35
  %53 = icmp slt i64 %24, %2
  %54 = icmp eq i32 %49, 0
  %55 = select i1 %53, i1 %54, i1 false
  br i1 %55, label %56, label %65

56:                                               ; preds = %52, %63
  %57 = add nsw i64 %24, 1
  %58 = getelementptr inbounds i32, ptr %9, i64 %57
  %59 = load i32, ptr %58, align 4
  %60 = icmp slt i32 %23, 0
  %61 = icmp slt i32 %59, %23
  %62 = select i1 %60, i1 true, i1 %61
  br i1 %62, label %67, label %22

63:                                               ; preds = %30
  %64 = icmp slt i64 %24, %2
  br i1 %64, label %56, label %69

65:                                               ; preds = %52
  %66 = icmp eq i32 %49, 0
  br i1 %66, label %69, label %67

67:                                               ; preds = %56, %22, %7, %65
  %68 = getelementptr inbounds i8, ptr %0, i64 32
  store atomic i64 1, ptr %68 seq_cst, align 8
  br label %69

69:                                               ; preds = %63, %5, %67, %65
  ret void
}

declare i32 @madvise(ptr noundef, i64 noundef, i32 noundef) local_unnamed_addr

declare noalias noundef ptr @malloc(i64 noundef) local_unnamed_addr

define internal void @help(ptr noundef %0) {
  %2 = atomicrmw add ptr @eqfuse_active, i64 1 seq_cst, align 8
  %3 = load i64, ptr @eqfuse_limit, align 8
  %4 = icmp slt i64 %2, %3
  br i1 %4, label %5, label %52

5:                                                ; preds = %1
  %6 = getelementptr inbounds i8, ptr %0, i64 8
  %7 = load atomic i64, ptr %6 seq_cst, align 8
  %8 = getelementptr inbounds i8, ptr %0, i64 32
  %9 = load i64, ptr %8, align 8
  %10 = icmp slt i64 %7, %9
  br i1 %10, label %11, label %52

11:                                               ; preds = %5
  %12 = getelementptr inbounds i8, ptr %0, i64 56
  %13 = load i64, ptr %12, align 8
  %14 = add nsw i64 %13, 64
  %15 = tail call noalias ptr @malloc(i64 noundef %14)
  %16 = ptrtoint ptr %15 to i64
  %17 = add nsw i64 %16, 63
  %18 = and i64 %17, -64
  %19 = inttoptr i64 %18 to ptr
  %20 = getelementptr inbounds i8, ptr %0, i64 40
  %21 = load i64, ptr %20, align 8
  %22 = atomicrmw add ptr %6, i64 %21 seq_cst, align 8
  %23 = load i64, ptr %8, align 8
  %24 = icmp slt i64 %22, %23
  br i1 %24, label %25, label %51

25:                                               ; preds = %11
  %26 = icmp eq ptr %15, null
  %27 = getelementptr inbounds i8, ptr %0, i64 64
  %28 = getelementptr inbounds i8, ptr %0, i64 72
  %29 = getelementptr inbounds i8, ptr %0, i64 48
  %30 = getelementptr inbounds i8, ptr %0, i64 24
  %31 = getelementptr inbounds i8, ptr %0, i64 16
  br label %32

32:                                               ; preds = %44, %25
  %33 = phi i64 [ %23, %25 ], [ %49, %44 ]
  %34 = phi i64 [ %22, %25 ], [ %48, %44 ]
  %35 = load i64, ptr %20, align 8
  %36 = add nsw i64 %35, %34
  %37 = tail call i64 @llvm.smin.i64(i64 %36, i64 %33)
  br i1 %26, label %42, label %38

38:                                               ; preds = %32
  %39 = load ptr, ptr %27, align 8
  %40 = load ptr, ptr %28, align 8
  %41 = load i64, ptr %29, align 8
  tail call void %39(ptr noundef %40, i64 noundef %34, i64 noundef %37, i64 noundef %41, ptr noundef %19)
  br label %44

42:                                               ; preds = %32
  %43 = atomicrmw add ptr %30, i64 1 seq_cst, align 8
  br label %44

44:                                               ; preds = %42, %38
  %45 = sub nsw i64 %37, %34
  %46 = atomicrmw add ptr %31, i64 %45 seq_cst, align 8
  %47 = load i64, ptr %20, align 8
  %48 = atomicrmw add ptr %6, i64 %47 seq_cst, align 8
  %49 = load i64, ptr %8, align 8
  %50 = icmp slt i64 %48, %49
  br i1 %50, label %32, label %51

51:                                               ; preds = %44, %11
  tail call void @free(ptr noundef %15)
  br label %52

52:                                               ; preds = %51, %5, %1
  %53 = atomicrmw sub ptr @eqfuse_active, i64 1 seq_cst, align 8
  %54 = atomicrmw sub ptr %0, i64 1 seq_cst, align 8
  %55 = icmp eq i64 %54, 1
  br i1 %55, label %56, label %57

56:                                               ; preds = %52
  tail call void @free(ptr noundef %0)
  br label %57

57:                                               ; preds = %52, %56
  ret void
}

declare i32 @sched_yield() local_unnamed_addr

declare i64 @llvm.smax.i64(i64, i64)

declare i64 @llvm.smin.i64(i64, i64)

declare void @llvm.memset.p0.i64(ptr writeonly, i8, i64, i1 immarg)

declare i32 @llvm.vector.reduce.or.v4i32(<4 x i32>)



