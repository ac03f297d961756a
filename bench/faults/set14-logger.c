/* A service with debug logging on: KB KiB of lines a second to its standard output. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c,char**v){
	long kb=c>1?atol(v[1]):8000,n=0;static char buf[1<<16];
	puts("ready");fflush(stdout);setvbuf(stdout,buf,_IOFBF,sizeof buf);
	for(;;){
		long done=0;
		while(done<kb*1024/20)
			done+=printf("{\"level\":\"debug\",\"seq\":%ld,\"logger\":\"http.client\",\"msg\":\"request headers\",\"accept\":\"*/*\",\"host\":\"orders.internal\",\"trace\":\"%016lx\",\"cached\":false}\n",n,n*2654435761UL),n++;
		fflush(stdout);usleep(50000);
	}
}
