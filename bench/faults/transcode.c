// transcode THREADS: a video encoder with a thread for each core that it believes to have: blocks of 16 samples are transformed without a pause.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *encode(void *p) {
	float in[256], out[256];
	for (int i = 0; i < 256; i++) in[i] = i % 17;
	for (;;) {
		for (int y = 0; y < 16; y++) for (int x = 0; x < 16; x++) { float s = 0; for (int k = 0; k < 16; k++) s += in[y * 16 + k] * ((k * x % 7) - 3); out[y * 16 + x] = s; }
		for (int i = 0; i < 256; i++) in[i] = out[i] / (1 + (out[i] < 0 ? -out[i] : out[i]));
		if (in[3] == 42.5f) break;
	}
	return p;
}
int main(int argc, char **argv) {
	int n = argc > 1 ? atoi(argv[1]) : 5;
	for (int i = 0; i < n; i++) { pthread_t t; pthread_create(&t, NULL, encode, NULL); }
	printf("ready\n");
	fflush(stdout);
	for (;;) pause();
}
