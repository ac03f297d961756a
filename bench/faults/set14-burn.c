/* spin N | mine N | herd N CPU_MS PERIOD_MS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <sys/wait.h>
static double now(clockid_t c){struct timespec t;clock_gettime(c,&t);return t.tv_sec+t.tv_nsec/1e9;}
static uint64_t*pad;static size_t mask;
static uint64_t mix(uint64_t x){x^=x>>33;x*=0xff51afd7ed558ccdULL;x^=x>>33;x*=0xc4ceb9fe1a85ec53ULL;return x^x>>29;}
static void*spin(void*p){volatile uint64_t s=(uintptr_t)p+1;for(;;){uint64_t x=s;for(int i=0;i<100000;i++)x=mix(x+i);s=x;}return 0;}
static void*mine(void*p){volatile uint64_t s=(uintptr_t)p+1;for(;;){uint64_t x=s;for(int i=0;i<100000;i++){x=mix(x^pad[x&mask]);if(!(i&7))pad[x&mask]^=x;}s=x;}return 0;}
int main(int c,char**v){
	int n=c>2?atoi(v[2]):2;pthread_t t;
	if(c>1&&!strcmp(v[1],"herd")){
		double cpu=atoi(v[3])/1e3,per=atoi(v[4])/1e3;int first=1;
		for(;;){double t0=now(CLOCK_MONOTONIC);
			for(int i=0;i<n;i++)if(!fork()){volatile uint64_t x=i;while(now(CLOCK_PROCESS_CPUTIME_ID)<cpu)for(int k=0;k<10000;k++)x=mix(x);_exit(0);}
			if(first){puts("ready");fflush(stdout);first=0;}
			while(wait(0)>0);
			double r=t0+per-now(CLOCK_MONOTONIC);if(r>0)usleep(r*1e6);}
	}
	int m=c>1&&!strcmp(v[1],"mine");
	if(m){size_t k=256u<<20;pad=malloc(k);if(!pad)return 1;mask=k/8-1;for(size_t i=0;i<=mask;i++)pad[i]=mix(i);}
	for(long i=0;i<n;i++)pthread_create(&t,0,m?mine:spin,(void*)i);
	puts("ready");fflush(stdout);for(;;)pause();
}
