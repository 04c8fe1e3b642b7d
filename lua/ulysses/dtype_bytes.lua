-- dtype_bytes.lua - how many bytes an element of each dtype has.
return { f32 = 4, bf16 = 2, f64 = 8, i32 = 4, i64 = 8, u8 = 1 }
