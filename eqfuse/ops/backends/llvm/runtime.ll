; made of runtime.c by scripts/runtime_ir.py, sha256 f9b7fab5bc55e944f3789c4617858c75d537e1b8d35b5e440f687353a8cdb60f
%struct.XLA_FFI_Error_Destroy_Args = type { i64, ptr, ptr }
%struct.XLA_FFI_ThreadPool_NumThreads_Args = type { i64, ptr, ptr, ptr }
%struct.XLA_FFI_ThreadPool_Schedule_Args = type { i64, ptr, ptr, ptr, ptr }
%struct.XLA_FFI_Error_Create_Args = type { i64, ptr, ptr, i32 }
%struct.Entry = type { i64, i64, i64, i64, i64, ptr }
%struct.Pass = type { ptr, i64, i64, i64, i64, i64 }

@eqfuse_limit = local_unnamed_addr global i64 1, align 8
@eqfuse_active = global i64 0, align 8
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

define ptr @eqfuse_call(ptr noundef readonly %0, ptr noundef readonly %1) local_unnamed_addr {
  %3 = alloca %struct.XLA_FFI_Error_Destroy_Args, align 8
  %4 = alloca %struct.XLA_FFI_Error_Destroy_Args, align 8
  %5 = alloca i64, align 8
  %6 = alloca %struct.XLA_FFI_ThreadPool_NumThreads_Args, align 8
  %7 = alloca %struct.XLA_FFI_ThreadPool_Schedule_Args, align 8
  %8 = alloca [512 x i8], align 16
  %9 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %10 = alloca [512 x i8], align 16
  %11 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %12 = alloca [512 x i8], align 16
  %13 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %14 = alloca [512 x i8], align 16
  %15 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %16 = alloca [512 x i8], align 16
  %17 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %18 = alloca [512 x i8], align 16
  %19 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %20 = alloca [512 x i8], align 16
  %21 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %22 = alloca [512 x i8], align 16
  %23 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %24 = alloca ptr, align 16
  %25 = alloca ptr, align 8
  %26 = alloca [512 x i8], align 16
  %27 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %28 = alloca [512 x i8], align 16
  %29 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %30 = getelementptr inbounds i8, ptr %0, i64 8
  %31 = load ptr, ptr %30, align 8
  %32 = icmp eq ptr %31, null
  br i1 %32, label %44, label %33

33:                                               ; preds = %2
  %34 = getelementptr inbounds i8, ptr %31, i64 8
  %35 = load i32, ptr %34, align 8
  %36 = icmp eq i32 %35, 1
  br i1 %36, label %37, label %44

37:                                               ; preds = %33
  %38 = getelementptr inbounds i8, ptr %31, i64 24
  %39 = load ptr, ptr %38, align 8
  %40 = load i32, ptr @eqfuse_version, align 4
  %41 = getelementptr inbounds i8, ptr %39, i64 24
  store i32 %40, ptr %41, align 8
  %42 = load i32, ptr getelementptr inbounds (i8, ptr @eqfuse_version, i64 4), align 4
  %43 = getelementptr inbounds i8, ptr %39, i64 28
  store i32 %42, ptr %43, align 4
  br label %558

44:                                               ; preds = %33, %2
  %45 = load i64, ptr %1, align 8
  %46 = getelementptr inbounds i8, ptr %1, i64 8
  %47 = load i64, ptr %46, align 8
  %48 = getelementptr inbounds i8, ptr %0, i64 56
  %49 = load i64, ptr %48, align 8
  %50 = getelementptr inbounds i8, ptr %0, i64 96
  %51 = load i64, ptr %50, align 8
  %52 = getelementptr inbounds i8, ptr %0, i64 72
  %53 = load ptr, ptr %52, align 8
  store ptr %53, ptr %24, align 16
  %54 = getelementptr inbounds i8, ptr %0, i64 112
  %55 = load ptr, ptr %54, align 8
  store ptr %55, ptr %25, align 8
  %56 = add nsw i64 %47, %45
  %57 = tail call ptr @llvm.stacksave.p0()
  %58 = alloca ptr, i64 %56, align 16
  %59 = getelementptr inbounds i8, ptr %1, i64 24
  %60 = getelementptr inbounds i8, ptr %17, i64 8
  %61 = getelementptr inbounds i8, ptr %17, i64 16
  %62 = getelementptr inbounds i8, ptr %17, i64 24
  %63 = getelementptr inbounds i8, ptr %0, i64 16
  %64 = getelementptr inbounds i8, ptr %19, i64 8
  %65 = getelementptr inbounds i8, ptr %19, i64 16
  %66 = getelementptr inbounds i8, ptr %19, i64 24
  %67 = getelementptr inbounds i8, ptr %21, i64 8
  %68 = getelementptr inbounds i8, ptr %21, i64 16
  %69 = getelementptr inbounds i8, ptr %21, i64 24
  %70 = getelementptr inbounds i8, ptr %23, i64 8
  %71 = getelementptr inbounds i8, ptr %23, i64 16
  %72 = getelementptr inbounds i8, ptr %23, i64 24
  %73 = icmp eq i64 %49, %45
  br i1 %73, label %74, label %87

74:                                               ; preds = %44
  %75 = icmp eq i64 %51, %47
  br label %77

76:                                               ; preds = %200
  br i1 %75, label %77, label %87

77:                                               ; preds = %74, %76
  %78 = phi i64 [ %51, %76 ], [ %49, %74 ]
  %79 = phi i64 [ %201, %76 ], [ -1, %74 ]
  %80 = phi i64 [ %202, %76 ], [ -1, %74 ]
  %81 = phi i64 [ %203, %76 ], [ 0, %74 ]
  %82 = phi ptr [ %25, %76 ], [ %24, %74 ]
  %83 = phi i1 [ false, %76 ], [ true, %74 ]
  %84 = icmp sgt i64 %78, 0
  br i1 %84, label %85, label %200

85:                                               ; preds = %77
  %86 = load ptr, ptr %82, align 8
  br label %99

87:                                               ; preds = %76, %44
  %88 = phi ptr [ @.str.2, %44 ], [ @.str.1, %76 ]
  %89 = phi i64 [ %49, %44 ], [ %51, %76 ]
  %90 = phi i64 [ %45, %44 ], [ %47, %76 ]
  %91 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %26, i64 noundef 512, ptr noundef nonnull @.str, i64 noundef %90, ptr noundef nonnull %88, i64 noundef %89)
  store i64 32, ptr %27, align 8
  %92 = getelementptr inbounds i8, ptr %27, i64 8
  store ptr null, ptr %92, align 8
  %93 = getelementptr inbounds i8, ptr %27, i64 16
  store ptr %26, ptr %93, align 8
  %94 = getelementptr inbounds i8, ptr %27, i64 24
  store i32 3, ptr %94, align 8
  %95 = load ptr, ptr %63, align 8
  %96 = getelementptr inbounds i8, ptr %95, i64 48
  %97 = load ptr, ptr %96, align 8
  %98 = call ptr %97(ptr noundef nonnull %27)
  br label %556

99:                                               ; preds = %85, %191
  %100 = phi i64 [ %81, %85 ], [ %198, %191 ]
  %101 = phi i64 [ 0, %85 ], [ %197, %191 ]
  %102 = phi i64 [ %80, %85 ], [ %192, %191 ]
  %103 = phi i64 [ %79, %85 ], [ %193, %191 ]
  %104 = getelementptr inbounds ptr, ptr %86, i64 %101
  %105 = load ptr, ptr %104, align 8
  %106 = load ptr, ptr %59, align 8
  %107 = getelementptr inbounds %struct.Entry, ptr %106, i64 %100
  %108 = getelementptr inbounds i8, ptr %105, i64 16
  %109 = load i32, ptr %108, align 8
  %110 = zext i32 %109 to i64
  %111 = getelementptr inbounds i8, ptr %105, i64 32
  %112 = load i64, ptr %111, align 8
  %113 = load i64, ptr %107, align 8
  %114 = icmp eq i64 %113, %110
  br i1 %114, label %123, label %115

115:                                              ; preds = %99
  %116 = getelementptr inbounds i8, ptr %107, i64 40
  %117 = load ptr, ptr %116, align 8
  %118 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %16, i64 noundef 512, ptr noundef nonnull @.str.4, ptr noundef %117, i64 noundef %113, i64 noundef %110)
  store i64 32, ptr %17, align 8
  store ptr null, ptr %60, align 8
  store ptr %16, ptr %61, align 8
  store i32 3, ptr %62, align 8
  %119 = load ptr, ptr %63, align 8
  %120 = getelementptr inbounds i8, ptr %119, i64 48
  %121 = load ptr, ptr %120, align 8
  %122 = call ptr %121(ptr noundef nonnull %17)
  br label %186

123:                                              ; preds = %99
  %124 = getelementptr inbounds i8, ptr %107, i64 8
  %125 = load i64, ptr %124, align 8
  %126 = icmp eq i64 %112, %125
  br i1 %126, label %135, label %127

127:                                              ; preds = %123
  %128 = getelementptr inbounds i8, ptr %107, i64 40
  %129 = load ptr, ptr %128, align 8
  %130 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %18, i64 noundef 512, ptr noundef nonnull @.str.5, ptr noundef %129, i64 noundef %125, i64 noundef %112)
  store i64 32, ptr %19, align 8
  store ptr null, ptr %64, align 8
  store ptr %18, ptr %65, align 8
  store i32 3, ptr %66, align 8
  %131 = load ptr, ptr %63, align 8
  %132 = getelementptr inbounds i8, ptr %131, i64 48
  %133 = load ptr, ptr %132, align 8
  %134 = call ptr %133(ptr noundef nonnull %19)
  br label %186

135:                                              ; preds = %123
  %136 = icmp eq i64 %112, 2
  %137 = getelementptr inbounds i8, ptr %105, i64 40
  %138 = load ptr, ptr %137, align 8
  br i1 %136, label %139, label %153

139:                                              ; preds = %135
  %140 = getelementptr inbounds i8, ptr %138, i64 8
  %141 = load i64, ptr %140, align 8
  %142 = getelementptr inbounds i8, ptr %107, i64 24
  %143 = load i64, ptr %142, align 8
  %144 = icmp eq i64 %141, %143
  br i1 %144, label %153, label %145

145:                                              ; preds = %139
  %146 = getelementptr inbounds i8, ptr %107, i64 40
  %147 = load ptr, ptr %146, align 8
  %148 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %20, i64 noundef 512, ptr noundef nonnull @.str.6, ptr noundef %147, i64 noundef %143, i64 noundef %141)
  store i64 32, ptr %21, align 8
  store ptr null, ptr %67, align 8
  store ptr %20, ptr %68, align 8
  store i32 3, ptr %69, align 8
  %149 = load ptr, ptr %63, align 8
  %150 = getelementptr inbounds i8, ptr %149, i64 48
  %151 = load ptr, ptr %150, align 8
  %152 = call ptr %151(ptr noundef nonnull %21)
  br label %186

153:                                              ; preds = %139, %135
  %154 = getelementptr inbounds i8, ptr %107, i64 16
  %155 = load i64, ptr %154, align 8
  %156 = icmp eq i64 %155, 2
  %157 = zext i1 %156 to i64
  %158 = load i64, ptr %138, align 8
  %159 = sub nsw i64 %158, %157
  %160 = icmp sgt i64 %155, -1
  br i1 %160, label %161, label %170

161:                                              ; preds = %153
  %162 = icmp eq i64 %155, 0
  %163 = select i1 %162, i64 %103, i64 %102
  %164 = icmp slt i64 %163, 0
  %165 = select i1 %162, i64 %102, i64 %159
  %166 = and i1 %162, %164
  %167 = select i1 %166, i64 %158, i64 %103
  %168 = select i1 %164, i64 %165, i64 %102
  %169 = select i1 %162, i64 %167, i64 %168
  br label %172

170:                                              ; preds = %153
  %171 = sub nsw i64 0, %155
  br label %172

172:                                              ; preds = %161, %170
  %173 = phi i64 [ %103, %170 ], [ %167, %161 ]
  %174 = phi i64 [ %102, %170 ], [ %168, %161 ]
  %175 = phi i64 [ %171, %170 ], [ %169, %161 ]
  %176 = icmp eq i64 %159, %175
  br i1 %176, label %191, label %177

177:                                              ; preds = %172
  %178 = getelementptr inbounds i8, ptr %107, i64 40
  %179 = load ptr, ptr %178, align 8
  %180 = add nsw i64 %175, %157
  %181 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %22, i64 noundef 512, ptr noundef nonnull @.str.7, ptr noundef %179, i64 noundef %180, i64 noundef %158)
  store i64 32, ptr %23, align 8
  store ptr null, ptr %70, align 8
  store ptr %22, ptr %71, align 8
  store i32 3, ptr %72, align 8
  %182 = load ptr, ptr %63, align 8
  %183 = getelementptr inbounds i8, ptr %182, i64 48
  %184 = load ptr, ptr %183, align 8
  %185 = call ptr %184(ptr noundef nonnull %23)
  br label %186

186:                                              ; preds = %115, %127, %145, %177
  %187 = phi i64 [ %173, %177 ], [ %103, %145 ], [ %103, %127 ], [ %103, %115 ]
  %188 = phi i64 [ %174, %177 ], [ %102, %145 ], [ %102, %127 ], [ %102, %115 ]
  %189 = phi ptr [ %185, %177 ], [ %152, %145 ], [ %134, %127 ], [ %122, %115 ]
  %190 = icmp eq ptr %189, null
  br i1 %190, label %191, label %556

191:                                              ; preds = %172, %186
  %192 = phi i64 [ %188, %186 ], [ %174, %172 ]
  %193 = phi i64 [ %187, %186 ], [ %173, %172 ]
  %194 = getelementptr inbounds i8, ptr %105, i64 24
  %195 = load ptr, ptr %194, align 8
  %196 = getelementptr inbounds ptr, ptr %58, i64 %100
  store ptr %195, ptr %196, align 8
  %197 = add nuw nsw i64 %101, 1
  %198 = add nsw i64 %100, 1
  %199 = icmp eq i64 %197, %78
  br i1 %199, label %200, label %99

200:                                              ; preds = %191, %77
  %201 = phi i64 [ %79, %77 ], [ %193, %191 ]
  %202 = phi i64 [ %80, %77 ], [ %192, %191 ]
  %203 = phi i64 [ %81, %77 ], [ %198, %191 ]
  br i1 %83, label %76, label %204

204:                                              ; preds = %200
  %205 = icmp sgt i64 %45, 0
  br i1 %205, label %206, label %349

206:                                              ; preds = %204
  %207 = getelementptr inbounds i8, ptr %9, i64 8
  %208 = getelementptr inbounds i8, ptr %9, i64 16
  %209 = getelementptr inbounds i8, ptr %9, i64 24
  %210 = getelementptr inbounds i8, ptr %13, i64 8
  %211 = getelementptr inbounds i8, ptr %13, i64 16
  %212 = getelementptr inbounds i8, ptr %13, i64 24
  %213 = getelementptr inbounds i8, ptr %11, i64 8
  %214 = getelementptr inbounds i8, ptr %11, i64 16
  %215 = getelementptr inbounds i8, ptr %11, i64 24
  %216 = getelementptr inbounds i8, ptr %15, i64 8
  %217 = getelementptr inbounds i8, ptr %15, i64 16
  %218 = getelementptr inbounds i8, ptr %15, i64 24
  br label %219

219:                                              ; preds = %206, %342
  %220 = phi i1 [ true, %206 ], [ %344, %342 ]
  %221 = phi i64 [ 0, %206 ], [ %343, %342 ]
  %222 = load ptr, ptr %59, align 8
  %223 = getelementptr inbounds %struct.Entry, ptr %222, i64 %221
  %224 = getelementptr inbounds ptr, ptr %58, i64 %221
  %225 = load ptr, ptr %224, align 8
  %226 = getelementptr inbounds i8, ptr %223, i64 16
  %227 = load i64, ptr %226, align 8
  %228 = icmp slt i64 %227, 0
  %229 = getelementptr inbounds i8, ptr %223, i64 32
  %230 = load i64, ptr %229, align 8
  br i1 %228, label %231, label %241

231:                                              ; preds = %219
  %232 = icmp eq i64 %230, 3
  br i1 %232, label %233, label %237

233:                                              ; preds = %231
  %234 = getelementptr inbounds i8, ptr %223, i64 24
  %235 = load i64, ptr %234, align 8
  %236 = xor i64 %227, -1
  br label %298

237:                                              ; preds = %231
  %238 = sub nsw i64 0, %227
  %239 = getelementptr inbounds i8, ptr %223, i64 24
  %240 = load i64, ptr %239, align 8
  br label %241

241:                                              ; preds = %237, %219
  %242 = phi i64 [ %240, %237 ], [ %202, %219 ]
  %243 = phi i64 [ %238, %237 ], [ %201, %219 ]
  %244 = add i64 %230, -1
  %245 = icmp ult i64 %244, 2
  br i1 %245, label %246, label %298

246:                                              ; preds = %241
  %247 = icmp eq i64 %230, 2
  %248 = select i1 %247, i64 %243, i64 %242
  %249 = icmp sgt i64 %243, 0
  br i1 %249, label %250, label %267

250:                                              ; preds = %246, %256
  %251 = phi i64 [ %257, %256 ], [ 0, %246 ]
  %252 = getelementptr inbounds i32, ptr %225, i64 %251
  %253 = load i32, ptr %252, align 4
  %254 = sext i32 %253 to i64
  %255 = icmp ugt i64 %248, %254
  br i1 %255, label %256, label %259

256:                                              ; preds = %250
  %257 = add nuw nsw i64 %251, 1
  %258 = icmp eq i64 %257, %243
  br i1 %258, label %267, label %250

259:                                              ; preds = %250
  %260 = getelementptr inbounds i8, ptr %223, i64 40
  %261 = load ptr, ptr %260, align 8
  %262 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.8, ptr noundef %261, i64 noundef %251, i64 noundef %254, i64 noundef %248)
  store i64 32, ptr %9, align 8
  store ptr null, ptr %207, align 8
  store ptr %8, ptr %208, align 8
  store i32 11, ptr %209, align 8
  %263 = load ptr, ptr %63, align 8
  %264 = getelementptr inbounds i8, ptr %263, i64 48
  %265 = load ptr, ptr %264, align 8
  %266 = call ptr %265(ptr noundef nonnull %9)
  br label %339

267:                                              ; preds = %256, %246
  br i1 %247, label %268, label %298

268:                                              ; preds = %267
  %269 = call noalias ptr @calloc(i64 noundef %243, i64 noundef 1)
  %270 = icmp eq ptr %269, null
  br i1 %270, label %272, label %271

271:                                              ; preds = %268
  br i1 %249, label %278, label %297

272:                                              ; preds = %268
  %273 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %10, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %243)
  store i64 32, ptr %11, align 8
  store ptr null, ptr %213, align 8
  store ptr %10, ptr %214, align 8
  store i32 8, ptr %215, align 8
  %274 = load ptr, ptr %63, align 8
  %275 = getelementptr inbounds i8, ptr %274, i64 48
  %276 = load ptr, ptr %275, align 8
  %277 = call ptr %276(ptr noundef nonnull %11)
  br label %339

278:                                              ; preds = %271, %294
  %279 = phi i64 [ %295, %294 ], [ 0, %271 ]
  %280 = getelementptr inbounds i32, ptr %225, i64 %279
  %281 = load i32, ptr %280, align 4
  %282 = sext i32 %281 to i64
  %283 = getelementptr inbounds i8, ptr %269, i64 %282
  %284 = load i8, ptr %283, align 1
  %285 = icmp eq i8 %284, 0
  br i1 %285, label %294, label %286

286:                                              ; preds = %278
  call void @free(ptr noundef nonnull %269)
  %287 = getelementptr inbounds i8, ptr %223, i64 40
  %288 = load ptr, ptr %287, align 8
  %289 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %12, i64 noundef 512, ptr noundef nonnull @.str.9, ptr noundef %288, i64 noundef %282)
  store i64 32, ptr %13, align 8
  store ptr null, ptr %210, align 8
  store ptr %12, ptr %211, align 8
  store i32 3, ptr %212, align 8
  %290 = load ptr, ptr %63, align 8
  %291 = getelementptr inbounds i8, ptr %290, i64 48
  %292 = load ptr, ptr %291, align 8
  %293 = call ptr %292(ptr noundef nonnull %13)
  br label %339

294:                                              ; preds = %278
  store i8 1, ptr %283, align 1
  %295 = add nuw nsw i64 %279, 1
  %296 = icmp eq i64 %295, %243
  br i1 %296, label %297, label %278

297:                                              ; preds = %294, %271
  call void @free(ptr noundef nonnull %269)
  br label %342

298:                                              ; preds = %267, %241, %233
  %299 = phi i64 [ %235, %233 ], [ %243, %241 ], [ %243, %267 ]
  %300 = phi i64 [ %236, %233 ], [ %242, %241 ], [ %242, %267 ]
  %301 = phi i64 [ 3, %233 ], [ %230, %241 ], [ %230, %267 ]
  %302 = icmp ne i64 %301, 3
  %303 = icmp slt i64 %300, 0
  %304 = select i1 %302, i1 true, i1 %303
  br i1 %304, label %342, label %305

305:                                              ; preds = %298
  %306 = icmp eq i64 %300, 0
  %307 = select i1 %306, i64 %299, i64 0
  %308 = load i32, ptr %225, align 4
  %309 = sext i32 %308 to i64
  %310 = icmp sgt i64 %307, %309
  %311 = icmp sgt i32 %308, 0
  %312 = or i1 %311, %310
  br i1 %312, label %327, label %313

313:                                              ; preds = %305
  br i1 %306, label %342, label %314

314:                                              ; preds = %313, %325
  %315 = phi i64 [ %321, %325 ], [ %309, %313 ]
  %316 = phi i64 [ %326, %325 ], [ 1, %313 ]
  %317 = icmp eq i64 %316, %300
  %318 = select i1 %317, i64 %299, i64 %315
  %319 = getelementptr inbounds i32, ptr %225, i64 %316
  %320 = load i32, ptr %319, align 4
  %321 = sext i32 %320 to i64
  %322 = icmp sgt i64 %318, %321
  %323 = icmp slt i64 %299, %321
  %324 = select i1 %322, i1 true, i1 %323
  br i1 %324, label %327, label %325

325:                                              ; preds = %314
  %326 = add nuw i64 %316, 1
  br i1 %317, label %342, label %314

327:                                              ; preds = %314, %305
  %328 = phi i64 [ 0, %305 ], [ %316, %314 ]
  %329 = phi i64 [ %307, %305 ], [ %318, %314 ]
  %330 = phi i64 [ 0, %305 ], [ %299, %314 ]
  %331 = phi i64 [ %309, %305 ], [ %321, %314 ]
  %332 = getelementptr inbounds i8, ptr %223, i64 40
  %333 = load ptr, ptr %332, align 8
  %334 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %14, i64 noundef 512, ptr noundef nonnull @.str.10, ptr noundef %333, i64 noundef %328, i64 noundef %331, i64 noundef %329, i64 noundef %330, i64 noundef %300)
  store i64 32, ptr %15, align 8
  store ptr null, ptr %216, align 8
  store ptr %14, ptr %217, align 8
  store i32 11, ptr %218, align 8
  %335 = load ptr, ptr %63, align 8
  %336 = getelementptr inbounds i8, ptr %335, i64 48
  %337 = load ptr, ptr %336, align 8
  %338 = call ptr %337(ptr noundef nonnull %15)
  br label %339

339:                                              ; preds = %259, %272, %286, %327
  %340 = phi ptr [ %266, %259 ], [ %338, %327 ], [ %293, %286 ], [ %277, %272 ]
  %341 = icmp eq ptr %340, null
  br i1 %341, label %342, label %346

342:                                              ; preds = %325, %297, %313, %298, %339
  %343 = add nuw nsw i64 %221, 1
  %344 = icmp slt i64 %343, %45
  %345 = icmp eq i64 %343, %45
  br i1 %345, label %346, label %219

346:                                              ; preds = %342, %339
  %347 = phi i1 [ %344, %342 ], [ %220, %339 ]
  %348 = phi ptr [ undef, %342 ], [ %340, %339 ]
  br i1 %347, label %556, label %349

349:                                              ; preds = %204, %346
  %350 = icmp sgt i64 %47, 0
  br i1 %350, label %372, label %351

351:                                              ; preds = %399, %349
  %352 = getelementptr inbounds i8, ptr %1, i64 16
  %353 = load i64, ptr %352, align 8
  %354 = icmp sgt i64 %353, 0
  br i1 %354, label %355, label %556

355:                                              ; preds = %351
  %356 = getelementptr inbounds i8, ptr %1, i64 32
  %357 = add i64 %201, -1
  %358 = icmp slt i64 %201, 0
  %359 = select i1 %358, i64 1, i64 %201
  %360 = getelementptr inbounds i8, ptr %6, i64 8
  %361 = getelementptr inbounds i8, ptr %6, i64 16
  %362 = getelementptr inbounds i8, ptr %0, i64 24
  %363 = getelementptr inbounds i8, ptr %6, i64 24
  %364 = getelementptr inbounds i8, ptr %4, i64 8
  %365 = getelementptr inbounds i8, ptr %4, i64 16
  %366 = getelementptr inbounds i8, ptr %7, i64 8
  %367 = getelementptr inbounds i8, ptr %7, i64 16
  %368 = getelementptr inbounds i8, ptr %7, i64 24
  %369 = getelementptr inbounds i8, ptr %7, i64 32
  %370 = getelementptr inbounds i8, ptr %3, i64 8
  %371 = getelementptr inbounds i8, ptr %3, i64 16
  br label %406

372:                                              ; preds = %349, %399
  %373 = phi i64 [ %400, %399 ], [ 0, %349 ]
  %374 = getelementptr inbounds ptr, ptr %55, i64 %373
  %375 = load ptr, ptr %374, align 8
  %376 = getelementptr inbounds i8, ptr %375, i64 40
  %377 = load ptr, ptr %376, align 8
  %378 = load i64, ptr %377, align 8
  %379 = getelementptr inbounds i8, ptr %377, i64 8
  %380 = load i64, ptr %379, align 8
  %381 = mul nsw i64 %380, %378
  %382 = getelementptr inbounds i8, ptr %375, i64 16
  %383 = load i32, ptr %382, align 8
  %384 = icmp eq i32 %383, 12
  %385 = select i1 %384, i64 3, i64 2
  %386 = shl i64 %381, %385
  %387 = icmp slt i64 %386, 4194304
  br i1 %387, label %399, label %388

388:                                              ; preds = %372
  %389 = getelementptr inbounds i8, ptr %375, i64 24
  %390 = load ptr, ptr %389, align 8
  %391 = ptrtoint ptr %390 to i64
  %392 = add nsw i64 %391, 2097151
  %393 = and i64 %392, -2097152
  %394 = inttoptr i64 %393 to ptr
  %395 = add nsw i64 %386, %391
  %396 = sub i64 %395, %393
  %397 = and i64 %396, -2097152
  %398 = call i32 @madvise(ptr noundef %394, i64 noundef %397, i32 noundef 14)
  br label %399

399:                                              ; preds = %372, %388
  %400 = add nuw nsw i64 %373, 1
  %401 = icmp eq i64 %400, %47
  br i1 %401, label %351, label %372

402:                                              ; preds = %543
  %403 = add nuw nsw i64 %407, 1
  %404 = load i64, ptr %352, align 8
  %405 = icmp slt i64 %403, %404
  br i1 %405, label %406, label %556

406:                                              ; preds = %355, %402
  %407 = phi i64 [ 0, %355 ], [ %403, %402 ]
  %408 = load ptr, ptr %356, align 8
  %409 = getelementptr inbounds %struct.Pass, ptr %408, i64 %407
  %410 = getelementptr inbounds i8, ptr %409, i64 8
  %411 = load i64, ptr %410, align 8
  %412 = icmp slt i64 %411, 0
  %413 = getelementptr inbounds i8, ptr %409, i64 40
  %414 = load i64, ptr %413, align 8
  %415 = icmp sgt i64 %414, 0
  %416 = getelementptr inbounds i8, ptr %409, i64 16
  %417 = load i64, ptr %416, align 8
  %418 = mul nsw i64 %417, %359
  br i1 %412, label %423, label %419

419:                                              ; preds = %406
  %420 = add i64 %357, %411
  %421 = sdiv i64 %420, %411
  %422 = select i1 %415, i64 %414, i64 %421
  br label %430

423:                                              ; preds = %406
  %424 = mul i64 %202, %411
  %425 = sub i64 0, %424
  %426 = select i1 %415, i64 %414, i64 %425
  %427 = getelementptr inbounds i8, ptr %409, i64 24
  %428 = load i64, ptr %427, align 8
  %429 = mul nsw i64 %428, %202
  br label %430

430:                                              ; preds = %419, %423
  %431 = phi i64 [ %426, %423 ], [ %422, %419 ]
  %432 = phi i64 [ %429, %423 ], [ 0, %419 ]
  %433 = add nsw i64 %432, %418
  %434 = and i1 %412, %415
  %435 = select i1 %434, i64 %202, i64 %201
  %436 = load ptr, ptr %63, align 8
  %437 = load i64, ptr @eqfuse_limit, align 8
  %438 = call noundef i64 @llvm.smin.i64(i64 %437, i64 %431)
  %439 = add nsw i64 %438, -1
  %440 = sdiv i64 %433, 30000
  %441 = call noundef i64 @llvm.smin.i64(i64 %439, i64 %440)
  %442 = icmp sgt i64 %441, 0
  br i1 %442, label %443, label %457

443:                                              ; preds = %430
  store i64 0, ptr %5, align 8
  store i64 32, ptr %6, align 8
  store ptr null, ptr %360, align 8
  %444 = load ptr, ptr %362, align 8
  store ptr %444, ptr %361, align 8
  store ptr %5, ptr %363, align 8
  %445 = getelementptr inbounds i8, ptr %436, i64 144
  %446 = load ptr, ptr %445, align 8
  %447 = call ptr %446(ptr noundef nonnull %6)
  %448 = icmp eq ptr %447, null
  br i1 %448, label %449, label %451

449:                                              ; preds = %443
  %450 = load i64, ptr %5, align 8
  br label %454

451:                                              ; preds = %443
  store i64 24, ptr %4, align 8
  store ptr null, ptr %364, align 8
  store ptr %447, ptr %365, align 8
  %452 = getelementptr inbounds i8, ptr %436, i64 64
  %453 = load ptr, ptr %452, align 8
  call void %453(ptr noundef nonnull %4)
  br label %454

454:                                              ; preds = %451, %449
  %455 = phi i64 [ %450, %449 ], [ 0, %451 ]
  %456 = call noundef i64 @llvm.smin.i64(i64 %441, i64 %455)
  br label %457

457:                                              ; preds = %454, %430
  %458 = phi i64 [ %456, %454 ], [ %441, %430 ]
  %459 = call noalias dereferenceable_or_null(80) ptr @malloc(i64 noundef 80)
  %460 = icmp eq ptr %459, null
  br i1 %460, label %545, label %461

461:                                              ; preds = %457
  %462 = call i64 @llvm.smax.i64(i64 %458, i64 0)
  %463 = add nuw nsw i64 %462, 1
  %464 = shl nuw nsw i64 %463, 3
  %465 = add i64 %431, -1
  %466 = add i64 %465, %464
  %467 = sdiv i64 %466, %464
  %468 = getelementptr inbounds i8, ptr %409, i64 32
  %469 = load i64, ptr %468, align 8
  %470 = load ptr, ptr %409, align 8
  store i64 %463, ptr %459, align 8
  %471 = getelementptr inbounds i8, ptr %459, i64 8
  %472 = getelementptr inbounds i8, ptr %459, i64 16
  %473 = getelementptr inbounds i8, ptr %459, i64 24
  %474 = getelementptr inbounds i8, ptr %459, i64 32
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(24) %471, i8 0, i64 24, i1 false)
  store i64 %431, ptr %474, align 8
  %475 = getelementptr inbounds i8, ptr %459, i64 40
  store i64 %467, ptr %475, align 8
  %476 = getelementptr inbounds i8, ptr %459, i64 48
  store i64 %435, ptr %476, align 8
  %477 = getelementptr inbounds i8, ptr %459, i64 56
  store i64 %469, ptr %477, align 8
  %478 = getelementptr inbounds i8, ptr %459, i64 64
  store ptr %470, ptr %478, align 8
  %479 = getelementptr inbounds i8, ptr %459, i64 72
  store ptr %58, ptr %479, align 8
  %480 = icmp sgt i64 %458, 0
  br i1 %480, label %481, label %484

481:                                              ; preds = %461
  %482 = getelementptr inbounds i8, ptr %436, i64 136
  %483 = getelementptr inbounds i8, ptr %436, i64 64
  br label %521

484:                                              ; preds = %530, %461
  %485 = atomicrmw add ptr @eqfuse_active, i64 1 seq_cst, align 8
  %486 = load i64, ptr %477, align 8
  %487 = add nsw i64 %486, 64
  %488 = call noalias ptr @malloc(i64 noundef %487)
  %489 = ptrtoint ptr %488 to i64
  %490 = add nsw i64 %489, 63
  %491 = and i64 %490, -64
  %492 = inttoptr i64 %491 to ptr
  %493 = load i64, ptr %475, align 8
  %494 = atomicrmw add ptr %471, i64 %493 seq_cst, align 8
  %495 = load i64, ptr %474, align 8
  %496 = icmp slt i64 %494, %495
  br i1 %496, label %497, label %518

497:                                              ; preds = %484
  %498 = icmp eq ptr %488, null
  br label %499

499:                                              ; preds = %511, %497
  %500 = phi i64 [ %495, %497 ], [ %516, %511 ]
  %501 = phi i64 [ %494, %497 ], [ %515, %511 ]
  %502 = load i64, ptr %475, align 8
  %503 = add nsw i64 %502, %501
  %504 = call i64 @llvm.smin.i64(i64 %503, i64 %500)
  br i1 %498, label %509, label %505

505:                                              ; preds = %499
  %506 = load ptr, ptr %478, align 8
  %507 = load ptr, ptr %479, align 8
  %508 = load i64, ptr %476, align 8
  call void %506(ptr noundef %507, i64 noundef %501, i64 noundef %504, i64 noundef %508, ptr noundef %492)
  br label %511

509:                                              ; preds = %499
  %510 = atomicrmw add ptr %473, i64 1 seq_cst, align 8
  br label %511

511:                                              ; preds = %509, %505
  %512 = sub nsw i64 %504, %501
  %513 = atomicrmw add ptr %472, i64 %512 seq_cst, align 8
  %514 = load i64, ptr %475, align 8
  %515 = atomicrmw add ptr %471, i64 %514 seq_cst, align 8
  %516 = load i64, ptr %474, align 8
  %517 = icmp slt i64 %515, %516
  br i1 %517, label %499, label %518

518:                                              ; preds = %511, %484
  call void @free(ptr noundef %488)
  %519 = load atomic i64, ptr %472 seq_cst, align 8
  %520 = icmp slt i64 %519, %431
  br i1 %520, label %533, label %537

521:                                              ; preds = %530, %481
  %522 = phi i64 [ 0, %481 ], [ %531, %530 ]
  store i64 40, ptr %7, align 8
  store ptr null, ptr %366, align 8
  %523 = load ptr, ptr %362, align 8
  store ptr %523, ptr %367, align 8
  store ptr @help, ptr %368, align 8
  store ptr %459, ptr %369, align 8
  %524 = load ptr, ptr %482, align 8
  %525 = call ptr %524(ptr noundef nonnull %7)
  %526 = icmp eq ptr %525, null
  br i1 %526, label %530, label %527

527:                                              ; preds = %521
  store i64 24, ptr %3, align 8
  store ptr null, ptr %370, align 8
  store ptr %525, ptr %371, align 8
  %528 = load ptr, ptr %483, align 8
  call void %528(ptr noundef nonnull %3)
  %529 = atomicrmw sub ptr %459, i64 1 seq_cst, align 8
  br label %530

530:                                              ; preds = %527, %521
  %531 = add nuw nsw i64 %522, 1
  %532 = icmp eq i64 %531, %458
  br i1 %532, label %484, label %521

533:                                              ; preds = %518, %533
  %534 = call i32 @sched_yield()
  %535 = load atomic i64, ptr %472 seq_cst, align 8
  %536 = icmp slt i64 %535, %431
  br i1 %536, label %533, label %537

537:                                              ; preds = %533, %518
  %538 = atomicrmw sub ptr @eqfuse_active, i64 1 seq_cst, align 8
  %539 = load atomic i64, ptr %473 seq_cst, align 8
  %540 = atomicrmw sub ptr %459, i64 1 seq_cst, align 8
  %541 = icmp eq i64 %540, 1
  br i1 %541, label %542, label %543

542:                                              ; preds = %537
  call void @free(ptr noundef nonnull %459)
  br label %543

543:                                              ; preds = %537, %542
  %544 = icmp eq i64 %539, 0
  br i1 %544, label %402, label %545

545:                                              ; preds = %457, %543
  %546 = getelementptr inbounds i8, ptr %409, i64 32
  %547 = load i64, ptr %546, align 8
  %548 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %28, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %547)
  store i64 32, ptr %29, align 8
  %549 = getelementptr inbounds i8, ptr %29, i64 8
  store ptr null, ptr %549, align 8
  %550 = getelementptr inbounds i8, ptr %29, i64 16
  store ptr %28, ptr %550, align 8
  %551 = getelementptr inbounds i8, ptr %29, i64 24
  store i32 8, ptr %551, align 8
  %552 = load ptr, ptr %63, align 8
  %553 = getelementptr inbounds i8, ptr %552, i64 48
  %554 = load ptr, ptr %553, align 8
  %555 = call ptr %554(ptr noundef nonnull %29)
  br label %556

556:                                              ; preds = %186, %402, %351, %545, %87, %346
  %557 = phi ptr [ %348, %346 ], [ %98, %87 ], [ %555, %545 ], [ null, %351 ], [ null, %402 ], [ %189, %186 ]
  call void @llvm.stackrestore.p0(ptr %57)
  br label %558

558:                                              ; preds = %556, %37
  %559 = phi ptr [ null, %37 ], [ %557, %556 ]
  ret ptr %559
}



declare ptr @llvm.stacksave.p0()

declare noundef i32 @snprintf(ptr noalias noundef writeonly, i64 noundef, ptr noundef readonly, ...) local_unnamed_addr

declare void @llvm.stackrestore.p0(ptr)

declare noalias noundef ptr @calloc(i64 noundef, i64 noundef) local_unnamed_addr

declare void @free(ptr allocptr noundef) local_unnamed_addr

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



