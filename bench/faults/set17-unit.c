/* A unit that the build compiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define F(n) int f##n(int a, int b) { int s = 0; for (int i = 0; i < a; i++) { for (int j = 0; j < b; j++) { \
	switch ((i * j + n) % 7) { case 0: s += i ^ j; break; case 1: s -= i * j; break; case 2: s ^= (i << 3) + j; break; \
	case 3: s += s / (j + 1); break; case 4: s *= 3; break; case 5: s -= i & j; break; default: s++; } } } return s; }
#define T(n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7) F(n##8) F(n##9)
T(1) T(2) T(3) T(4) T(5) T(6) T(7) T(8) T(9)
int main(int c, char **v) { printf("%d\n", f10(c, atoi(v[0])) + f11(c, 3) + f99(c, 5)); return 0; }
