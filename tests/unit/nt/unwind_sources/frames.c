// Functions with every kind of prolog the compiler makes; entry() calls them all.
typedef unsigned long long u64;
volatile u64 sink; volatile int zero = 0; volatile int three = 3;
#define NOINLINE __attribute__((noinline))
NOINLINE u64 leaf(u64 a, u64 b) { return a * 31 + b; }
NOINLINE u64 touch(volatile char *p, int n) { u64 s = 0; for (int i = 0; i < n; i += 64) { p[i] = (char)i; s += p[i]; } return s; }
NOINLINE u64 pushes(u64 a, u64 b, u64 c, u64 d) {
  u64 x = leaf(a, b), y = leaf(c, d), z = leaf(a, d), w = leaf(b, c), v = leaf(a, c), q = leaf(b, d);
  return leaf(x, y) ^ leaf(z, w) ^ leaf(v, q) ^ x ^ y ^ z ^ w ^ v ^ q; }
NOINLINE u64 medium(u64 a) { volatile char buf[300]; return touch(buf, sizeof buf) + pushes(a, a + 1, a + 2, a + 3); }
NOINLINE u64 large(u64 a) { volatile char buf[9000]; return touch(buf, 500) + medium(a); }
NOINLINE u64 huge(u64 a) { volatile char buf[600000]; return touch(buf, 500) + medium(a) + leaf(a, a); }
NOINLINE u64 dynamic(u64 n) { volatile char *p = __builtin_alloca(n); u64 r = touch(p, (int)n); return r + medium(n) + leaf(r, n) + (u64)p[0]; }
NOINLINE u64 dynamic_aligned(u64 n) { _Alignas(64) volatile char a[64]; volatile char *p = __builtin_alloca(n); u64 r = touch(p, (int)n) + touch(a, 64); return r + medium(n) + leaf(r, n); }
NOINLINE u64 floats(double a, double b) { double c = a * b, d = a + b, e = a / (b + 1), f = c * d; u64 x = leaf((u64)a, (u64)b); return x + (u64)(c * d + e * f + a + b); }
NOINLINE u64 many(int n, ...) { __builtin_va_list l; __builtin_va_start(l, n); u64 s = 0; for (int i = 0; i < n; i++) s += leaf(s, __builtin_va_arg(l, u64)); __builtin_va_end(l); return s; }
NOINLINE u64 tail2(u64 a) { return leaf(a, a) + 1; }
NOINLINE u64 tail(u64 a, u64 b) { u64 x = leaf(a, b); sink = x; return tail2(x); }
NOINLINE u64 recurse(u64 n) { if (!n) return pushes(1, 2, 3, 4); u64 r = recurse(n - 1); return leaf(r, n) + r; }
NOINLINE u64 early(u64 a) { if (zero) return a; u64 r = pushes(a, 1, 2, a); if (r & 1) { sink = r; r = medium(r); } return r + leaf(r, r); }
NOINLINE u64 sw(u64 a) { switch (a & 7) { case 0: return leaf(a, 1); case 1: return pushes(a, a, a, a); case 2: return medium(a); case 3: return tail(a, 2); case 4: return early(a); case 5: return recurse(2); default: return floats((double)a, 2.5); } }
u64 asm_saves(u64); u64 asm_frame(u64); u64 asm_chained(u64); u64 asm_interrupted(u64);
typedef u64 (*fn)(u64);
NOINLINE u64 indirect(fn f, u64 a) { return f(a) + leaf(a, a); }
u64 entry(void) {
  u64 r = 0;
  for (u64 i = 0; i < 8; i++) r += sw(i);
  r += large(1) + huge(2) + dynamic(100) + dynamic(5000) + dynamic_aligned(300) + floats(3.0, 4.0) + many(4, 1ull, 2ull, 3ull, 4ull);
  r += indirect(tail2, 3) + indirect(recurse, 4) + asm_saves(1) + asm_frame(2) + asm_chained(3) + asm_interrupted(4);
  return r; }
int _fltused = 1;
