// stack-dumps MIB SECONDS: an application server whose health check fails each SECONDS, and which then prints the stacks of
// all of its threads: MIB of text on its standard output within a moment. After 40 dumps it is silent.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
	long bytes = (argc > 1 ? atol(argv[1]) : 8) << 20;
	int pause_s = argc > 2 ? atoi(argv[2]) : 6;
	printf("ready\n");
	fflush(stdout);
	sleep(1);
	for (int dump = 0; dump < 40; dump++) {
		long n = 0;
		for (int thread = 0; n < bytes; thread++) {
			n += printf("\"http-nio-8080-exec-%d\" #%d daemon prio=5 os_prio=0 tid=0x%08x nid=0x%x waiting on condition\n", thread, thread + 30, thread * 4096, thread);
			for (int f = 0; f < 40; f++) n += printf("\tat com.example.orders.internal.pipeline.Stage%d.invoke(Stage%d.java:%d)\n", f, f, 100 + f * 7);
		}
		fflush(stdout);
		sleep(pause_s);
	}
	for (;;) pause();
}
