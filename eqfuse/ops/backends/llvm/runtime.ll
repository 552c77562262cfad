; made of runtime.c by scripts/runtime_ir.py, sha256 42bca261582076eff9d869355f922a97f012d4615d014e843d2ff7002cb7cf06
%struct.Check = type { ptr, ptr, ptr, i64, i64 }
%struct.XLA_FFI_Error_Create_Args = type { i64, ptr, ptr, i32 }
%struct.Entry = type { i64, i64, i64, i64, i64, ptr }
%struct.Order = type { i64, i64, i64 }
%struct.Pass = type { ptr, i64, i64, i64, i64, i64 }
%struct.XLA_FFI_Error_Destroy_Args = type { i64, ptr, ptr }
%struct.XLA_FFI_ThreadPool_NumThreads_Args = type { i64, ptr, ptr, ptr }
%struct.XLA_FFI_ThreadPool_Schedule_Args = type { i64, ptr, ptr, ptr, ptr }

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
  %17 = alloca [512 x i8], align 16
  %18 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %19 = alloca [512 x i8], align 16
  %20 = alloca %struct.XLA_FFI_Error_Create_Args, align 8
  %21 = getelementptr inbounds i8, ptr %0, i64 8
  %22 = load ptr, ptr %21, align 8
  %23 = icmp eq ptr %22, null
  br i1 %23, label %33, label %24

24:                                               ; preds = %2
  %25 = getelementptr inbounds i8, ptr %22, i64 8
  %26 = load i32, ptr %25, align 8
  %27 = icmp eq i32 %26, 1
  br i1 %27, label %28, label %33

28:                                               ; preds = %24
  %29 = getelementptr inbounds i8, ptr %22, i64 24
  %30 = load ptr, ptr %29, align 8
  %31 = getelementptr inbounds i8, ptr %30, i64 24
  %32 = load <2 x i32>, ptr @eqfuse_version, align 4
  store <2 x i32> %32, ptr %31, align 8
  br label %626

33:                                               ; preds = %24, %2
  %34 = load i64, ptr %1, align 8
  %35 = getelementptr inbounds i8, ptr %1, i64 8
  %36 = load i64, ptr %35, align 8
  %37 = getelementptr inbounds i8, ptr %0, i64 56
  %38 = load i64, ptr %37, align 8
  %39 = getelementptr inbounds i8, ptr %0, i64 96
  %40 = load i64, ptr %39, align 8
  %41 = getelementptr inbounds i8, ptr %0, i64 72
  %42 = load ptr, ptr %41, align 8
  store ptr %42, ptr %15, align 16
  %43 = getelementptr inbounds i8, ptr %0, i64 112
  %44 = load ptr, ptr %43, align 8
  store ptr %44, ptr %16, align 8
  %45 = add nsw i64 %36, %34
  %46 = tail call ptr @llvm.stacksave.p0()
  %47 = alloca ptr, i64 %45, align 16
  %48 = getelementptr inbounds i8, ptr %1, i64 24
  %49 = getelementptr inbounds i8, ptr %8, i64 8
  %50 = getelementptr inbounds i8, ptr %8, i64 16
  %51 = getelementptr inbounds i8, ptr %8, i64 24
  %52 = getelementptr inbounds i8, ptr %0, i64 16
  %53 = getelementptr inbounds i8, ptr %10, i64 8
  %54 = getelementptr inbounds i8, ptr %10, i64 16
  %55 = getelementptr inbounds i8, ptr %10, i64 24
  %56 = getelementptr inbounds i8, ptr %12, i64 8
  %57 = getelementptr inbounds i8, ptr %12, i64 16
  %58 = getelementptr inbounds i8, ptr %12, i64 24
  %59 = getelementptr inbounds i8, ptr %14, i64 8
  %60 = getelementptr inbounds i8, ptr %14, i64 16
  %61 = getelementptr inbounds i8, ptr %14, i64 24
  %62 = icmp eq i64 %38, %34
  br i1 %62, label %63, label %76

63:                                               ; preds = %33
  %64 = icmp eq i64 %40, %36
  br label %66

65:                                               ; preds = %189
  br i1 %64, label %66, label %76

66:                                               ; preds = %63, %65
  %67 = phi i64 [ %40, %65 ], [ %38, %63 ]
  %68 = phi i64 [ %190, %65 ], [ -1, %63 ]
  %69 = phi i64 [ %191, %65 ], [ -1, %63 ]
  %70 = phi i64 [ %192, %65 ], [ 0, %63 ]
  %71 = phi ptr [ %16, %65 ], [ %15, %63 ]
  %72 = phi i1 [ false, %65 ], [ true, %63 ]
  %73 = icmp sgt i64 %67, 0
  br i1 %73, label %74, label %189

74:                                               ; preds = %66
  %75 = load ptr, ptr %71, align 8
  br label %88

76:                                               ; preds = %65, %33
  %77 = phi ptr [ @.str.2, %33 ], [ @.str.1, %65 ]
  %78 = phi i64 [ %38, %33 ], [ %40, %65 ]
  %79 = phi i64 [ %34, %33 ], [ %36, %65 ]
  %80 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %17, i64 noundef 512, ptr noundef nonnull @.str, i64 noundef %79, ptr noundef nonnull %77, i64 noundef %78)
  store i64 32, ptr %18, align 8
  %81 = getelementptr inbounds i8, ptr %18, i64 8
  store ptr null, ptr %81, align 8
  %82 = getelementptr inbounds i8, ptr %18, i64 16
  store ptr %17, ptr %82, align 8
  %83 = getelementptr inbounds i8, ptr %18, i64 24
  store i32 3, ptr %83, align 8
  %84 = load ptr, ptr %52, align 8
  %85 = getelementptr inbounds i8, ptr %84, i64 48
  %86 = load ptr, ptr %85, align 8
  %87 = call ptr %86(ptr noundef nonnull %18)
  br label %624

88:                                               ; preds = %74, %180
  %89 = phi i64 [ %70, %74 ], [ %187, %180 ]
  %90 = phi i64 [ 0, %74 ], [ %186, %180 ]
  %91 = phi i64 [ %69, %74 ], [ %181, %180 ]
  %92 = phi i64 [ %68, %74 ], [ %182, %180 ]
  %93 = getelementptr inbounds ptr, ptr %75, i64 %90
  %94 = load ptr, ptr %93, align 8
  %95 = load ptr, ptr %48, align 8
  %96 = getelementptr inbounds %struct.Entry, ptr %95, i64 %89
  %97 = getelementptr inbounds i8, ptr %94, i64 16
  %98 = load i32, ptr %97, align 8
  %99 = zext i32 %98 to i64
  %100 = getelementptr inbounds i8, ptr %94, i64 32
  %101 = load i64, ptr %100, align 8
  %102 = load i64, ptr %96, align 8
  %103 = icmp eq i64 %102, %99
  br i1 %103, label %112, label %104

104:                                              ; preds = %88
  %105 = getelementptr inbounds i8, ptr %96, i64 40
  %106 = load ptr, ptr %105, align 8
  %107 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %7, i64 noundef 512, ptr noundef nonnull @.str.4, ptr noundef %106, i64 noundef %102, i64 noundef %99)
  store i64 32, ptr %8, align 8
  store ptr null, ptr %49, align 8
  store ptr %7, ptr %50, align 8
  store i32 3, ptr %51, align 8
  %108 = load ptr, ptr %52, align 8
  %109 = getelementptr inbounds i8, ptr %108, i64 48
  %110 = load ptr, ptr %109, align 8
  %111 = call ptr %110(ptr noundef nonnull %8)
  br label %175

112:                                              ; preds = %88
  %113 = getelementptr inbounds i8, ptr %96, i64 8
  %114 = load i64, ptr %113, align 8
  %115 = icmp eq i64 %101, %114
  br i1 %115, label %124, label %116

116:                                              ; preds = %112
  %117 = getelementptr inbounds i8, ptr %96, i64 40
  %118 = load ptr, ptr %117, align 8
  %119 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %9, i64 noundef 512, ptr noundef nonnull @.str.5, ptr noundef %118, i64 noundef %114, i64 noundef %101)
  store i64 32, ptr %10, align 8
  store ptr null, ptr %53, align 8
  store ptr %9, ptr %54, align 8
  store i32 3, ptr %55, align 8
  %120 = load ptr, ptr %52, align 8
  %121 = getelementptr inbounds i8, ptr %120, i64 48
  %122 = load ptr, ptr %121, align 8
  %123 = call ptr %122(ptr noundef nonnull %10)
  br label %175

124:                                              ; preds = %112
  %125 = icmp eq i64 %101, 2
  %126 = getelementptr inbounds i8, ptr %94, i64 40
  %127 = load ptr, ptr %126, align 8
  br i1 %125, label %128, label %142

128:                                              ; preds = %124
  %129 = getelementptr inbounds i8, ptr %127, i64 8
  %130 = load i64, ptr %129, align 8
  %131 = getelementptr inbounds i8, ptr %96, i64 24
  %132 = load i64, ptr %131, align 8
  %133 = icmp eq i64 %130, %132
  br i1 %133, label %142, label %134

134:                                              ; preds = %128
  %135 = getelementptr inbounds i8, ptr %96, i64 40
  %136 = load ptr, ptr %135, align 8
  %137 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %11, i64 noundef 512, ptr noundef nonnull @.str.6, ptr noundef %136, i64 noundef %132, i64 noundef %130)
  store i64 32, ptr %12, align 8
  store ptr null, ptr %56, align 8
  store ptr %11, ptr %57, align 8
  store i32 3, ptr %58, align 8
  %138 = load ptr, ptr %52, align 8
  %139 = getelementptr inbounds i8, ptr %138, i64 48
  %140 = load ptr, ptr %139, align 8
  %141 = call ptr %140(ptr noundef nonnull %12)
  br label %175

142:                                              ; preds = %128, %124
  %143 = getelementptr inbounds i8, ptr %96, i64 16
  %144 = load i64, ptr %143, align 8
  %145 = icmp eq i64 %144, 2
  %146 = zext i1 %145 to i64
  %147 = load i64, ptr %127, align 8
  %148 = sub nsw i64 %147, %146
  %149 = icmp sgt i64 %144, -1
  br i1 %149, label %150, label %159

150:                                              ; preds = %142
  %151 = icmp eq i64 %144, 0
  %152 = select i1 %151, i64 %92, i64 %91
  %153 = icmp slt i64 %152, 0
  %154 = select i1 %151, i64 %91, i64 %148
  %155 = and i1 %151, %153
  %156 = select i1 %155, i64 %147, i64 %92
  %157 = select i1 %153, i64 %154, i64 %91
  %158 = select i1 %151, i64 %156, i64 %157
  br label %161

159:                                              ; preds = %142
  %160 = sub nsw i64 0, %144
  br label %161

161:                                              ; preds = %150, %159
  %162 = phi i64 [ %92, %159 ], [ %156, %150 ]
  %163 = phi i64 [ %91, %159 ], [ %157, %150 ]
  %164 = phi i64 [ %160, %159 ], [ %158, %150 ]
  %165 = icmp eq i64 %148, %164
  br i1 %165, label %180, label %166

166:                                              ; preds = %161
  %167 = getelementptr inbounds i8, ptr %96, i64 40
  %168 = load ptr, ptr %167, align 8
  %169 = add nsw i64 %164, %146
  %170 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %13, i64 noundef 512, ptr noundef nonnull @.str.7, ptr noundef %168, i64 noundef %169, i64 noundef %147)
  store i64 32, ptr %14, align 8
  store ptr null, ptr %59, align 8
  store ptr %13, ptr %60, align 8
  store i32 3, ptr %61, align 8
  %171 = load ptr, ptr %52, align 8
  %172 = getelementptr inbounds i8, ptr %171, i64 48
  %173 = load ptr, ptr %172, align 8
  %174 = call ptr %173(ptr noundef nonnull %14)
  br label %175

175:                                              ; preds = %104, %116, %134, %166
  %176 = phi i64 [ %162, %166 ], [ %92, %134 ], [ %92, %116 ], [ %92, %104 ]
  %177 = phi i64 [ %163, %166 ], [ %91, %134 ], [ %91, %116 ], [ %91, %104 ]
  %178 = phi ptr [ %174, %166 ], [ %141, %134 ], [ %123, %116 ], [ %111, %104 ]
  %179 = icmp eq ptr %178, null
  br i1 %179, label %180, label %624

180:                                              ; preds = %161, %175
  %181 = phi i64 [ %177, %175 ], [ %163, %161 ]
  %182 = phi i64 [ %176, %175 ], [ %162, %161 ]
  %183 = getelementptr inbounds i8, ptr %94, i64 24
  %184 = load ptr, ptr %183, align 8
  %185 = getelementptr inbounds ptr, ptr %47, i64 %89
  store ptr %184, ptr %185, align 8
  %186 = add nuw nsw i64 %90, 1
  %187 = add nsw i64 %89, 1
  %188 = icmp eq i64 %186, %67
  br i1 %188, label %189, label %88

189:                                              ; preds = %180, %66
  %190 = phi i64 [ %68, %66 ], [ %182, %180 ]
  %191 = phi i64 [ %69, %66 ], [ %181, %180 ]
  %192 = phi i64 [ %70, %66 ], [ %187, %180 ]
  br i1 %72, label %65, label %193

193:                                              ; preds = %189
  %194 = icmp sgt i64 %34, 0
  br i1 %194, label %195, label %280

195:                                              ; preds = %193
  %196 = getelementptr inbounds i8, ptr %6, i64 8
  %197 = getelementptr inbounds i8, ptr %6, i64 24
  %198 = getelementptr inbounds i8, ptr %6, i64 32
  br label %199

199:                                              ; preds = %195, %277
  %200 = phi i64 [ 0, %195 ], [ %278, %277 ]
  %201 = load ptr, ptr %48, align 8
  %202 = getelementptr inbounds %struct.Entry, ptr %201, i64 %200
  %203 = getelementptr inbounds ptr, ptr %47, i64 %200
  %204 = load ptr, ptr %203, align 8
  %205 = getelementptr inbounds i8, ptr %202, i64 32
  %206 = load i64, ptr %205, align 8
  %207 = icmp eq i64 %206, 1
  br i1 %207, label %208, label %277

208:                                              ; preds = %199
  %209 = getelementptr inbounds i8, ptr %202, i64 16
  %210 = load i64, ptr %209, align 8
  %211 = icmp sgt i64 %210, -1
  br i1 %211, label %216, label %212

212:                                              ; preds = %208
  %213 = sub nsw i64 0, %210
  %214 = getelementptr inbounds i8, ptr %202, i64 24
  %215 = load i64, ptr %214, align 8
  br label %216

216:                                              ; preds = %212, %208
  %217 = phi i64 [ %190, %208 ], [ %213, %212 ]
  %218 = phi i64 [ %191, %208 ], [ %215, %212 ]
  store ptr %204, ptr %6, align 8
  call void @llvm.memset.p0.i64(ptr noundef nonnull align 8 dereferenceable(16) %196, i8 0, i64 16, i1 false)
  store i64 %218, ptr %197, align 8
  store i64 0, ptr %198, align 8
  %219 = icmp slt i64 %217, 480000
  br i1 %219, label %220, label %266

220:                                              ; preds = %216
  %221 = trunc i64 %218 to i32
  %222 = icmp sgt i64 %217, 0
  br i1 %222, label %223, label %270

223:                                              ; preds = %220
  %224 = icmp ult i64 %217, 8
  br i1 %224, label %225, label %228

225:                                              ; preds = %248, %223
  %226 = phi i64 [ 0, %223 ], [ %229, %248 ]
  %227 = phi i32 [ 0, %223 ], [ %250, %248 ]
  br label %255

228:                                              ; preds = %223
  %229 = and i64 %217, 9223372036854775800
  %230 = insertelement <4 x i32> poison, i32 %221, i64 0
  %231 = shufflevector <4 x i32> %230, <4 x i32> poison, <4 x i32> zeroinitializer
  br label %232

232:                                              ; preds = %232, %228
  %233 = phi i64 [ 0, %228 ], [ %246, %232 ]
  %234 = phi <4 x i32> [ zeroinitializer, %228 ], [ %244, %232 ]
  %235 = phi <4 x i32> [ zeroinitializer, %228 ], [ %245, %232 ]
  %236 = getelementptr inbounds i32, ptr %204, i64 %233
  %237 = getelementptr inbounds i8, ptr %236, i64 16
  %238 = load <4 x i32>, ptr %236, align 4
  %239 = load <4 x i32>, ptr %237, align 4
  %240 = icmp uge <4 x i32> %238, %231
  %241 = icmp uge <4 x i32> %239, %231
  %242 = zext <4 x i1> %240 to <4 x i32>
  %243 = zext <4 x i1> %241 to <4 x i32>
  %244 = or <4 x i32> %234, %242
  %245 = or <4 x i32> %235, %243
  %246 = add nuw i64 %233, 8
  %247 = icmp eq i64 %246, %229
  br i1 %247, label %248, label %232

248:                                              ; preds = %232
  %249 = or <4 x i32> %245, %244
  %250 = call i32 @llvm.vector.reduce.or.v4i32(<4 x i32> %249)
  %251 = icmp eq i64 %217, %229
  br i1 %251, label %252, label %225

252:                                              ; preds = %255, %248
  %253 = phi i32 [ %250, %248 ], [ %262, %255 ]
  %254 = icmp eq i32 %253, 0
  br i1 %254, label %270, label %265

255:                                              ; preds = %225, %255
  %256 = phi i64 [ %263, %255 ], [ %226, %225 ]
  %257 = phi i32 [ %262, %255 ], [ %227, %225 ]
  %258 = getelementptr inbounds i32, ptr %204, i64 %256
  %259 = load i32, ptr %258, align 4
  %260 = icmp uge i32 %259, %221
  %261 = zext i1 %260 to i32
  %262 = or i32 %257, %261
  %263 = add nuw nsw i64 %256, 1
  %264 = icmp eq i64 %263, %217
  br i1 %264, label %252, label %255

265:                                              ; preds = %252
  store atomic i64 1, ptr %198 seq_cst, align 8
  br label %270

266:                                              ; preds = %216
  %267 = lshr i64 %217, 3
  %268 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_range, ptr noundef nonnull %6, i64 noundef %217, i64 noundef 0, i64 noundef 0, i64 noundef %267)
  %269 = icmp eq i64 %268, 0
  br i1 %269, label %270, label %274

270:                                              ; preds = %266, %265, %252, %220
  %271 = load atomic i64, ptr %198 seq_cst, align 8
  %272 = icmp eq i64 %271, 0
  br i1 %272, label %273, label %274

273:                                              ; preds = %270
  br label %277

274:                                              ; preds = %266, %270
  %275 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %202, ptr noundef %204, i64 noundef %217, i64 noundef %218)
  %276 = icmp eq ptr %275, null
  br i1 %276, label %277, label %624

277:                                              ; preds = %199, %273, %274
  %278 = add nuw nsw i64 %200, 1
  %279 = icmp slt i64 %278, %34
  br i1 %279, label %199, label %280

280:                                              ; preds = %277, %193
  %281 = getelementptr inbounds i8, ptr %1, i64 40
  %282 = load i64, ptr %281, align 8
  %283 = icmp sgt i64 %282, 0
  br i1 %283, label %284, label %531

284:                                              ; preds = %280
  %285 = getelementptr inbounds i8, ptr %1, i64 48
  %286 = getelementptr inbounds i8, ptr %3, i64 8
  %287 = getelementptr inbounds i8, ptr %3, i64 16
  %288 = getelementptr inbounds i8, ptr %3, i64 24
  %289 = getelementptr inbounds i8, ptr %3, i64 32
  %290 = getelementptr inbounds i8, ptr %5, i64 8
  %291 = getelementptr inbounds i8, ptr %5, i64 16
  %292 = getelementptr inbounds i8, ptr %5, i64 24
  br label %293

293:                                              ; preds = %284, %527
  %294 = phi i64 [ 0, %284 ], [ %528, %527 ]
  %295 = load ptr, ptr %48, align 8
  %296 = load ptr, ptr %285, align 8
  %297 = getelementptr inbounds %struct.Order, ptr %296, i64 %294
  %298 = load i64, ptr %297, align 8
  %299 = getelementptr inbounds ptr, ptr %47, i64 %298
  %300 = load ptr, ptr %299, align 8
  %301 = getelementptr inbounds i8, ptr %297, i64 8
  %302 = load i64, ptr %301, align 8
  %303 = getelementptr inbounds ptr, ptr %47, i64 %302
  %304 = load ptr, ptr %303, align 8
  %305 = getelementptr inbounds i8, ptr %297, i64 16
  %306 = load i64, ptr %305, align 8
  %307 = getelementptr inbounds ptr, ptr %47, i64 %306
  %308 = load ptr, ptr %307, align 8
  %309 = getelementptr inbounds %struct.Entry, ptr %295, i64 %298
  %310 = getelementptr inbounds i8, ptr %309, i64 16
  %311 = load i64, ptr %310, align 8
  %312 = icmp sgt i64 %311, -1
  br i1 %312, label %325, label %313

313:                                              ; preds = %293
  %314 = getelementptr inbounds i8, ptr %309, i64 32
  %315 = load i64, ptr %314, align 8
  %316 = icmp eq i64 %315, 3
  br i1 %316, label %317, label %321

317:                                              ; preds = %313
  %318 = getelementptr inbounds i8, ptr %309, i64 24
  %319 = load i64, ptr %318, align 8
  %320 = xor i64 %311, -1
  br label %325

321:                                              ; preds = %313
  %322 = sub nsw i64 0, %311
  %323 = getelementptr inbounds i8, ptr %309, i64 24
  %324 = load i64, ptr %323, align 8
  br label %325

325:                                              ; preds = %321, %317, %293
  %326 = phi i64 [ %190, %293 ], [ %319, %317 ], [ %322, %321 ]
  %327 = phi i64 [ %191, %293 ], [ %320, %317 ], [ %324, %321 ]
  %328 = getelementptr inbounds %struct.Entry, ptr %295, i64 %306
  %329 = getelementptr inbounds i8, ptr %328, i64 16
  %330 = load i64, ptr %329, align 8
  %331 = icmp sgt i64 %330, -1
  br i1 %331, label %341, label %332

332:                                              ; preds = %325
  %333 = getelementptr inbounds i8, ptr %328, i64 32
  %334 = load i64, ptr %333, align 8
  %335 = icmp eq i64 %334, 3
  br i1 %335, label %336, label %338

336:                                              ; preds = %332
  %337 = xor i64 %330, -1
  br label %341

338:                                              ; preds = %332
  %339 = getelementptr inbounds i8, ptr %328, i64 24
  %340 = load i64, ptr %339, align 8
  br label %341

341:                                              ; preds = %338, %336, %325
  %342 = phi i64 [ %327, %325 ], [ %337, %336 ], [ %340, %338 ]
  store ptr %300, ptr %3, align 8
  store ptr %304, ptr %286, align 8
  store ptr %308, ptr %287, align 8
  store i64 %326, ptr %288, align 8
  store i64 0, ptr %289, align 8
  %343 = icmp slt i64 %326, 480000
  br i1 %343, label %344, label %390

344:                                              ; preds = %341
  %345 = trunc i64 %326 to i32
  %346 = icmp sgt i64 %326, 0
  br i1 %346, label %347, label %394

347:                                              ; preds = %344
  %348 = icmp ult i64 %326, 8
  br i1 %348, label %349, label %352

349:                                              ; preds = %372, %347
  %350 = phi i64 [ 0, %347 ], [ %353, %372 ]
  %351 = phi i32 [ 0, %347 ], [ %374, %372 ]
  br label %379

352:                                              ; preds = %347
  %353 = and i64 %326, 9223372036854775800
  %354 = insertelement <4 x i32> poison, i32 %345, i64 0
  %355 = shufflevector <4 x i32> %354, <4 x i32> poison, <4 x i32> zeroinitializer
  br label %356

356:                                              ; preds = %356, %352
  %357 = phi i64 [ 0, %352 ], [ %370, %356 ]
  %358 = phi <4 x i32> [ zeroinitializer, %352 ], [ %368, %356 ]
  %359 = phi <4 x i32> [ zeroinitializer, %352 ], [ %369, %356 ]
  %360 = getelementptr inbounds i32, ptr %300, i64 %357
  %361 = getelementptr inbounds i8, ptr %360, i64 16
  %362 = load <4 x i32>, ptr %360, align 4
  %363 = load <4 x i32>, ptr %361, align 4
  %364 = icmp uge <4 x i32> %362, %355
  %365 = icmp uge <4 x i32> %363, %355
  %366 = zext <4 x i1> %364 to <4 x i32>
  %367 = zext <4 x i1> %365 to <4 x i32>
  %368 = or <4 x i32> %358, %366
  %369 = or <4 x i32> %359, %367
  %370 = add nuw i64 %357, 8
  %371 = icmp eq i64 %370, %353
  br i1 %371, label %372, label %356

372:                                              ; preds = %356
  %373 = or <4 x i32> %369, %368
  %374 = call i32 @llvm.vector.reduce.or.v4i32(<4 x i32> %373)
  %375 = icmp eq i64 %326, %353
  br i1 %375, label %376, label %349

376:                                              ; preds = %379, %372
  %377 = phi i32 [ %374, %372 ], [ %386, %379 ]
  %378 = icmp eq i32 %377, 0
  br i1 %378, label %394, label %389

379:                                              ; preds = %349, %379
  %380 = phi i64 [ %387, %379 ], [ %350, %349 ]
  %381 = phi i32 [ %386, %379 ], [ %351, %349 ]
  %382 = getelementptr inbounds i32, ptr %300, i64 %380
  %383 = load i32, ptr %382, align 4
  %384 = icmp uge i32 %383, %345
  %385 = zext i1 %384 to i32
  %386 = or i32 %381, %385
  %387 = add nuw nsw i64 %380, 1
  %388 = icmp eq i64 %387, %326
  br i1 %388, label %376, label %379

389:                                              ; preds = %376
  store atomic i64 1, ptr %289 seq_cst, align 8
  br label %394

390:                                              ; preds = %341
  %391 = lshr i64 %326, 3
  %392 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_range, ptr noundef nonnull %3, i64 noundef %326, i64 noundef 0, i64 noundef 0, i64 noundef %391)
  %393 = icmp eq i64 %392, 0
  br i1 %393, label %394, label %472

394:                                              ; preds = %390, %389, %376, %344
  %395 = load atomic i64, ptr %289 seq_cst, align 8
  %396 = icmp eq i64 %395, 0
  br i1 %396, label %397, label %472

397:                                              ; preds = %394
  %398 = add nsw i64 %342, %326
  %399 = icmp slt i64 %398, 120000
  br i1 %399, label %400, label %457

400:                                              ; preds = %397
  %401 = icmp sgt i64 %342, 0
  br i1 %401, label %402, label %461

402:                                              ; preds = %400
  %403 = load ptr, ptr %287, align 8
  %404 = load i32, ptr %403, align 4
  %405 = getelementptr inbounds i8, ptr %403, i64 4
  %406 = load i32, ptr %405, align 4
  %407 = icmp slt i32 %404, 0
  %408 = icmp slt i32 %406, %404
  %409 = select i1 %407, i1 true, i1 %408
  br i1 %409, label %456, label %410

410:                                              ; preds = %402
  %411 = load i64, ptr %288, align 8
  %412 = load ptr, ptr %3, align 8
  %413 = load ptr, ptr %286, align 8
  br label %414

414:                                              ; preds = %446, %410
  %415 = phi i32 [ %406, %410 ], [ %449, %446 ]
  %416 = phi i64 [ 1, %410 ], [ %447, %446 ]
  %417 = phi i64 [ 0, %410 ], [ %416, %446 ]
  %418 = phi i32 [ %404, %410 ], [ %415, %446 ]
  %419 = sext i32 %415 to i64
  %420 = icmp slt i64 %411, %419
  br i1 %420, label %456, label %421

421:                                              ; preds = %414
  %422 = icmp slt i32 %418, %415
  br i1 %422, label %423, label %453

423:                                              ; preds = %421
  %424 = zext nneg i32 %418 to i64
  br label %425

425:                                              ; preds = %425, %423
  %426 = phi i32 [ %439, %425 ], [ 0, %423 ]
  %427 = phi i64 [ %440, %425 ], [ %424, %423 ]
  %428 = phi i64 [ %431, %425 ], [ -1, %423 ]
  %429 = getelementptr inbounds i32, ptr %412, i64 %427
  %430 = load i32, ptr %429, align 4
  %431 = sext i32 %430 to i64
  %432 = getelementptr inbounds i32, ptr %413, i64 %431
  %433 = load i32, ptr %432, align 4
  %434 = sext i32 %433 to i64
  %435 = icmp ne i64 %417, %434
  %436 = icmp sge i64 %428, %431
  %437 = or i1 %436, %435
  %438 = zext i1 %437 to i32
  %439 = or i32 %426, %438
  %440 = add nuw nsw i64 %427, 1
  %441 = icmp slt i64 %440, %419
  br i1 %441, label %425, label %442

442:                                              ; preds = %425
  %443 = icmp slt i64 %416, %342
  %444 = icmp eq i32 %439, 0
  %445 = select i1 %443, i1 %444, i1 false
  br i1 %445, label %446, label %455

446:                                              ; preds = %453, %442
  %447 = add nuw nsw i64 %416, 1
  %448 = getelementptr inbounds i32, ptr %403, i64 %447
  %449 = load i32, ptr %448, align 4
  %450 = icmp slt i32 %415, 0
  %451 = icmp slt i32 %449, %415
  %452 = select i1 %450, i1 true, i1 %451
  br i1 %452, label %456, label %414

453:                                              ; preds = %421
  %454 = icmp slt i64 %416, %342
  br i1 %454, label %446, label %461

455:                                              ; preds = %442
  br i1 %444, label %461, label %456

456:                                              ; preds = %446, %414, %455, %402
  store atomic i64 1, ptr %289 seq_cst, align 8
  br label %461

457:                                              ; preds = %397
  %458 = lshr i64 %398, 1
  %459 = call fastcc i64 @share(ptr noundef readonly %0, ptr noundef nonnull @in_order, ptr noundef nonnull %3, i64 noundef %342, i64 noundef 0, i64 noundef 0, i64 noundef %458)
  %460 = icmp eq i64 %459, 0
  br i1 %460, label %461, label %472

461:                                              ; preds = %453, %457, %456, %455, %400
  %462 = load atomic i64, ptr %289 seq_cst, align 8
  %463 = icmp eq i64 %462, 0
  br i1 %463, label %464, label %472

464:                                              ; preds = %461
  %465 = load i32, ptr %308, align 4
  %466 = icmp eq i32 %465, 0
  br i1 %466, label %467, label %472

467:                                              ; preds = %464
  %468 = getelementptr inbounds i32, ptr %308, i64 %342
  %469 = load i32, ptr %468, align 4
  %470 = sext i32 %469 to i64
  %471 = icmp eq i64 %326, %470
  br i1 %471, label %523, label %472

472:                                              ; preds = %467, %464, %461, %457, %394, %390
  %473 = load i64, ptr %305, align 8
  %474 = getelementptr inbounds %struct.Entry, ptr %295, i64 %473
  %475 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %474, ptr noundef %308, i64 noundef %326, i64 noundef %342)
  %476 = icmp eq ptr %475, null
  br i1 %476, label %478, label %477

477:                                              ; preds = %472
  br label %624

478:                                              ; preds = %472
  %479 = load i64, ptr %297, align 8
  %480 = getelementptr inbounds %struct.Entry, ptr %295, i64 %479
  %481 = call fastcc ptr @check_indices(ptr noundef readonly %0, ptr noundef readonly %480, ptr noundef %300, i64 noundef %326, i64 noundef %342)
  %482 = icmp ne ptr %481, null
  %483 = icmp slt i64 %342, 1
  %484 = select i1 %482, i1 true, i1 %483
  br i1 %484, label %524, label %485

485:                                              ; preds = %478
  %486 = load i32, ptr %308, align 4
  br label %489

487:                                              ; preds = %520, %489
  %488 = icmp eq i64 %492, %342
  br i1 %488, label %523, label %489

489:                                              ; preds = %487, %485
  %490 = phi i32 [ %494, %487 ], [ %486, %485 ]
  %491 = phi i64 [ %492, %487 ], [ 0, %485 ]
  %492 = add nuw nsw i64 %491, 1
  %493 = getelementptr inbounds i32, ptr %308, i64 %492
  %494 = load i32, ptr %493, align 4
  %495 = sext i32 %494 to i64
  %496 = icmp slt i32 %490, %494
  br i1 %496, label %497, label %487

497:                                              ; preds = %489
  %498 = sext i32 %490 to i64
  br label %499

499:                                              ; preds = %520, %497
  %500 = phi i64 [ %521, %520 ], [ %498, %497 ]
  %501 = getelementptr inbounds i32, ptr %300, i64 %500
  %502 = load i32, ptr %501, align 4
  %503 = sext i32 %502 to i64
  %504 = getelementptr inbounds i32, ptr %304, i64 %503
  %505 = load i32, ptr %504, align 4
  %506 = sext i32 %505 to i64
  %507 = icmp eq i64 %491, %506
  br i1 %507, label %520, label %508

508:                                              ; preds = %499
  %509 = load i64, ptr %297, align 8
  %510 = getelementptr inbounds %struct.Entry, ptr %295, i64 %509, i32 5
  %511 = load ptr, ptr %510, align 8
  %512 = load i64, ptr %301, align 8
  %513 = getelementptr inbounds %struct.Entry, ptr %295, i64 %512, i32 5
  %514 = load ptr, ptr %513, align 8
  %515 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %4, i64 noundef 512, ptr noundef nonnull @.str.11, ptr noundef %511, i64 noundef %500, i64 noundef %503, ptr noundef %514, i64 noundef %503, i64 noundef %506, i64 noundef %491)
  store i64 32, ptr %5, align 8
  store ptr null, ptr %290, align 8
  store ptr %4, ptr %291, align 8
  store i32 3, ptr %292, align 8
  %516 = load ptr, ptr %52, align 8
  %517 = getelementptr inbounds i8, ptr %516, i64 48
  %518 = load ptr, ptr %517, align 8
  %519 = call ptr %518(ptr noundef nonnull %5)
  br label %524

520:                                              ; preds = %499
  %521 = add nsw i64 %500, 1
  %522 = icmp eq i64 %521, %495
  br i1 %522, label %487, label %499

523:                                              ; preds = %487, %467
  br label %527

524:                                              ; preds = %478, %508
  %525 = phi ptr [ %519, %508 ], [ %481, %478 ]
  %526 = icmp eq ptr %525, null
  br i1 %526, label %527, label %624

527:                                              ; preds = %523, %524
  %528 = add nuw nsw i64 %294, 1
  %529 = load i64, ptr %281, align 8
  %530 = icmp slt i64 %528, %529
  br i1 %530, label %293, label %531

531:                                              ; preds = %527, %280
  %532 = icmp sgt i64 %36, 0
  br i1 %532, label %533, label %535

533:                                              ; preds = %531
  %534 = load ptr, ptr %16, align 8
  br label %544

535:                                              ; preds = %571, %531
  %536 = getelementptr inbounds i8, ptr %1, i64 16
  %537 = load i64, ptr %536, align 8
  %538 = icmp sgt i64 %537, 0
  br i1 %538, label %539, label %624

539:                                              ; preds = %535
  %540 = getelementptr inbounds i8, ptr %1, i64 32
  %541 = add i64 %190, -1
  %542 = icmp slt i64 %190, 0
  %543 = select i1 %542, i64 1, i64 %190
  br label %578

544:                                              ; preds = %533, %571
  %545 = phi i64 [ 0, %533 ], [ %572, %571 ]
  %546 = getelementptr inbounds ptr, ptr %534, i64 %545
  %547 = load ptr, ptr %546, align 8
  %548 = getelementptr inbounds i8, ptr %547, i64 40
  %549 = load ptr, ptr %548, align 8
  %550 = load i64, ptr %549, align 8
  %551 = getelementptr inbounds i8, ptr %549, i64 8
  %552 = load i64, ptr %551, align 8
  %553 = mul nsw i64 %552, %550
  %554 = getelementptr inbounds i8, ptr %547, i64 16
  %555 = load i32, ptr %554, align 8
  %556 = icmp eq i32 %555, 12
  %557 = select i1 %556, i64 3, i64 2
  %558 = shl i64 %553, %557
  %559 = icmp slt i64 %558, 4194304
  br i1 %559, label %571, label %560

560:                                              ; preds = %544
  %561 = getelementptr inbounds i8, ptr %547, i64 24
  %562 = load ptr, ptr %561, align 8
  %563 = ptrtoint ptr %562 to i64
  %564 = add nsw i64 %563, 2097151
  %565 = and i64 %564, -2097152
  %566 = inttoptr i64 %565 to ptr
  %567 = add nsw i64 %558, %563
  %568 = sub i64 %567, %565
  %569 = and i64 %568, -2097152
  %570 = call i32 @madvise(ptr noundef %566, i64 noundef %569, i32 noundef 14)
  br label %571

571:                                              ; preds = %544, %560
  %572 = add nuw nsw i64 %545, 1
  %573 = icmp eq i64 %572, %36
  br i1 %573, label %535, label %544

574:                                              ; preds = %602
  %575 = add nuw nsw i64 %579, 1
  %576 = load i64, ptr %536, align 8
  %577 = icmp slt i64 %575, %576
  br i1 %577, label %578, label %624

578:                                              ; preds = %539, %574
  %579 = phi i64 [ 0, %539 ], [ %575, %574 ]
  %580 = load ptr, ptr %540, align 8
  %581 = getelementptr inbounds %struct.Pass, ptr %580, i64 %579
  %582 = getelementptr inbounds i8, ptr %581, i64 8
  %583 = load i64, ptr %582, align 8
  %584 = icmp slt i64 %583, 0
  %585 = getelementptr inbounds i8, ptr %581, i64 40
  %586 = load i64, ptr %585, align 8
  %587 = icmp sgt i64 %586, 0
  %588 = getelementptr inbounds i8, ptr %581, i64 16
  %589 = load i64, ptr %588, align 8
  %590 = mul nsw i64 %589, %543
  br i1 %584, label %595, label %591

591:                                              ; preds = %578
  %592 = add i64 %541, %583
  %593 = sdiv i64 %592, %583
  %594 = select i1 %587, i64 %586, i64 %593
  br label %602

595:                                              ; preds = %578
  %596 = mul i64 %191, %583
  %597 = sub i64 0, %596
  %598 = select i1 %587, i64 %586, i64 %597
  %599 = getelementptr inbounds i8, ptr %581, i64 24
  %600 = load i64, ptr %599, align 8
  %601 = mul nsw i64 %600, %191
  br label %602

602:                                              ; preds = %591, %595
  %603 = phi i64 [ %598, %595 ], [ %594, %591 ]
  %604 = phi i64 [ %601, %595 ], [ 0, %591 ]
  %605 = add nsw i64 %604, %590
  %606 = and i1 %584, %587
  %607 = select i1 %606, i64 %191, i64 %190
  %608 = load ptr, ptr %581, align 8
  %609 = getelementptr inbounds i8, ptr %581, i64 32
  %610 = load i64, ptr %609, align 8
  %611 = call fastcc i64 @share(ptr noundef %0, ptr noundef %608, ptr noundef nonnull %47, i64 noundef %603, i64 noundef %607, i64 noundef %610, i64 noundef %605)
  %612 = icmp eq i64 %611, 0
  br i1 %612, label %574, label %613

613:                                              ; preds = %602
  %614 = getelementptr inbounds i8, ptr %581, i64 32
  %615 = load i64, ptr %614, align 8
  %616 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %19, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %615)
  store i64 32, ptr %20, align 8
  %617 = getelementptr inbounds i8, ptr %20, i64 8
  store ptr null, ptr %617, align 8
  %618 = getelementptr inbounds i8, ptr %20, i64 16
  store ptr %19, ptr %618, align 8
  %619 = getelementptr inbounds i8, ptr %20, i64 24
  store i32 8, ptr %619, align 8
  %620 = load ptr, ptr %52, align 8
  %621 = getelementptr inbounds i8, ptr %620, i64 48
  %622 = load ptr, ptr %621, align 8
  %623 = call ptr %622(ptr noundef nonnull %20)
  br label %624

624:                                              ; preds = %175, %274, %524, %574, %477, %535, %613, %76
  %625 = phi ptr [ %87, %76 ], [ %623, %613 ], [ null, %535 ], [ %475, %477 ], [ null, %574 ], [ %525, %524 ], [ %275, %274 ], [ %178, %175 ]
  call void @llvm.stackrestore.p0(ptr %46)
  br label %626

626:                                              ; preds = %624, %28
  %627 = phi ptr [ null, %28 ], [ %625, %624 ]
  ret ptr %627
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
  %16 = add i64 %15, -1
  %17 = icmp ult i64 %16, 2
  br i1 %17, label %18, label %82

18:                                               ; preds = %5
  %19 = icmp eq i64 %15, 2
  %20 = select i1 %19, i64 %3, i64 %4
  %21 = icmp sgt i64 %3, 0
  br i1 %21, label %22, label %43

22:                                               ; preds = %18, %28
  %23 = phi i64 [ %29, %28 ], [ 0, %18 ]
  %24 = getelementptr inbounds i32, ptr %2, i64 %23
  %25 = load i32, ptr %24, align 4
  %26 = sext i32 %25 to i64
  %27 = icmp ugt i64 %20, %26
  br i1 %27, label %28, label %31

28:                                               ; preds = %22
  %29 = add nuw nsw i64 %23, 1
  %30 = icmp eq i64 %29, %3
  br i1 %30, label %43, label %22

31:                                               ; preds = %22
  %32 = getelementptr inbounds i8, ptr %1, i64 40
  %33 = load ptr, ptr %32, align 8
  %34 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %6, i64 noundef 512, ptr noundef nonnull @.str.8, ptr noundef %33, i64 noundef %23, i64 noundef %26, i64 noundef %20)
  store i64 32, ptr %7, align 8
  %35 = getelementptr inbounds i8, ptr %7, i64 8
  store ptr null, ptr %35, align 8
  %36 = getelementptr inbounds i8, ptr %7, i64 16
  store ptr %6, ptr %36, align 8
  %37 = getelementptr inbounds i8, ptr %7, i64 24
  store i32 11, ptr %37, align 8
  %38 = getelementptr inbounds i8, ptr %0, i64 16
  %39 = load ptr, ptr %38, align 8
  %40 = getelementptr inbounds i8, ptr %39, i64 48
  %41 = load ptr, ptr %40, align 8
  %42 = call ptr %41(ptr noundef nonnull %7)
  br label %126

43:                                               ; preds = %28, %18
  br i1 %19, label %44, label %82

44:                                               ; preds = %43
  %45 = tail call noalias ptr @calloc(i64 noundef %3, i64 noundef 1)
  %46 = icmp eq ptr %45, null
  br i1 %46, label %48, label %47

47:                                               ; preds = %44
  br i1 %21, label %58, label %81

48:                                               ; preds = %44
  %49 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %8, i64 noundef 512, ptr noundef nonnull @.str.3, i64 noundef %3)
  store i64 32, ptr %9, align 8
  %50 = getelementptr inbounds i8, ptr %9, i64 8
  store ptr null, ptr %50, align 8
  %51 = getelementptr inbounds i8, ptr %9, i64 16
  store ptr %8, ptr %51, align 8
  %52 = getelementptr inbounds i8, ptr %9, i64 24
  store i32 8, ptr %52, align 8
  %53 = getelementptr inbounds i8, ptr %0, i64 16
  %54 = load ptr, ptr %53, align 8
  %55 = getelementptr inbounds i8, ptr %54, i64 48
  %56 = load ptr, ptr %55, align 8
  %57 = call ptr %56(ptr noundef nonnull %9)
  br label %126

58:                                               ; preds = %47, %78
  %59 = phi i64 [ %79, %78 ], [ 0, %47 ]
  %60 = getelementptr inbounds i32, ptr %2, i64 %59
  %61 = load i32, ptr %60, align 4
  %62 = sext i32 %61 to i64
  %63 = getelementptr inbounds i8, ptr %45, i64 %62
  %64 = load i8, ptr %63, align 1
  %65 = icmp eq i8 %64, 0
  br i1 %65, label %78, label %66

66:                                               ; preds = %58
  tail call void @free(ptr noundef nonnull %45)
  %67 = getelementptr inbounds i8, ptr %1, i64 40
  %68 = load ptr, ptr %67, align 8
  %69 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %10, i64 noundef 512, ptr noundef nonnull @.str.9, ptr noundef %68, i64 noundef %62)
  store i64 32, ptr %11, align 8
  %70 = getelementptr inbounds i8, ptr %11, i64 8
  store ptr null, ptr %70, align 8
  %71 = getelementptr inbounds i8, ptr %11, i64 16
  store ptr %10, ptr %71, align 8
  %72 = getelementptr inbounds i8, ptr %11, i64 24
  store i32 3, ptr %72, align 8
  %73 = getelementptr inbounds i8, ptr %0, i64 16
  %74 = load ptr, ptr %73, align 8
  %75 = getelementptr inbounds i8, ptr %74, i64 48
  %76 = load ptr, ptr %75, align 8
  %77 = call ptr %76(ptr noundef nonnull %11)
  br label %126

78:                                               ; preds = %58
  store i8 1, ptr %63, align 1
  %79 = add nuw nsw i64 %59, 1
  %80 = icmp eq i64 %79, %3
  br i1 %80, label %81, label %58

81:                                               ; preds = %78, %47
  tail call void @free(ptr noundef nonnull %45)
  br label %82

82:                                               ; preds = %5, %81, %43
  %83 = icmp ne i64 %15, 3
  %84 = icmp slt i64 %4, 0
  %85 = or i1 %83, %84
  br i1 %85, label %126, label %86

86:                                               ; preds = %82
  %87 = icmp eq i64 %4, 0
  %88 = select i1 %87, i64 %3, i64 0
  %89 = load i32, ptr %2, align 4
  %90 = sext i32 %89 to i64
  %91 = icmp sgt i64 %88, %90
  %92 = icmp sgt i32 %89, 0
  %93 = or i1 %91, %92
  br i1 %93, label %110, label %94

94:                                               ; preds = %86
  %95 = icmp eq i64 %4, 0
  br i1 %95, label %126, label %96

96:                                               ; preds = %94, %107
  %97 = phi i64 [ %103, %107 ], [ %90, %94 ]
  %98 = phi i64 [ %108, %107 ], [ 1, %94 ]
  %99 = icmp eq i64 %98, %4
  %100 = select i1 %99, i64 %3, i64 %97
  %101 = getelementptr inbounds i32, ptr %2, i64 %98
  %102 = load i32, ptr %101, align 4
  %103 = sext i32 %102 to i64
  %104 = icmp sgt i64 %100, %103
  %105 = icmp sgt i64 %103, %3
  %106 = or i1 %104, %105
  br i1 %106, label %110, label %107

107:                                              ; preds = %96
  %108 = add nuw i64 %98, 1
  %109 = icmp eq i64 %98, %4
  br i1 %109, label %126, label %96

110:                                              ; preds = %96, %86
  %111 = phi i64 [ 0, %86 ], [ %98, %96 ]
  %112 = phi i64 [ %88, %86 ], [ %100, %96 ]
  %113 = phi i64 [ 0, %86 ], [ %3, %96 ]
  %114 = phi i64 [ %90, %86 ], [ %103, %96 ]
  %115 = getelementptr inbounds i8, ptr %1, i64 40
  %116 = load ptr, ptr %115, align 8
  %117 = call i32 (ptr, i64, ptr, ...) @snprintf(ptr noundef nonnull dereferenceable(1) %12, i64 noundef 512, ptr noundef nonnull @.str.10, ptr noundef %116, i64 noundef %111, i64 noundef %114, i64 noundef %112, i64 noundef %113, i64 noundef %4)
  store i64 32, ptr %13, align 8
  %118 = getelementptr inbounds i8, ptr %13, i64 8
  store ptr null, ptr %118, align 8
  %119 = getelementptr inbounds i8, ptr %13, i64 16
  store ptr %12, ptr %119, align 8
  %120 = getelementptr inbounds i8, ptr %13, i64 24
  store i32 11, ptr %120, align 8
  %121 = getelementptr inbounds i8, ptr %0, i64 16
  %122 = load ptr, ptr %121, align 8
  %123 = getelementptr inbounds i8, ptr %122, i64 48
  %124 = load ptr, ptr %123, align 8
  %125 = call ptr %124(ptr noundef nonnull %13)
  br label %126

126:                                              ; preds = %107, %94, %66, %48, %82, %110, %31
  %127 = phi ptr [ %42, %31 ], [ %125, %110 ], [ null, %82 ], [ %77, %66 ], [ %57, %48 ], [ null, %94 ], [ null, %107 ]
  ret ptr %127
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



