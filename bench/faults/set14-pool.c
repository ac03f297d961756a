/* A server that sized its thread pool for the host: N threads, each needs MS of CPU for every batch, a batch every PERIOD ms. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <pthread.h>
#include <time.h>
static pthread_barrier_t go;static double ms;
static double cpu(void){struct timespec t;clock_gettime(CLOCK_THREAD_CPUTIME_ID,&t);return t.tv_sec+t.tv_nsec/1e9;}
static void*w(void*p){volatile unsigned x=1;for(;;){pthread_barrier_wait(&go);double e=cpu()+ms/1e3;while(cpu()<e)for(int i=0;i<500;i++)x=x*1664525+i;}return p;}
int main(int c,char**v){
	int n=c>1?atoi(v[1]):8;ms=c>2?atof(v[2]):6;int per=c>3?atoi(v[3]):50;pthread_t t;
	pthread_barrier_init(&go,0,n+1);
	for(int i=0;i<n;i++)pthread_create(&t,0,w,0);
	puts("ready");fflush(stdout);
	for(;;){pthread_barrier_wait(&go);usleep(per*1000);}
}
