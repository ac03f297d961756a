/* An index of FILE MiB in a container with less memory: N threads read it through mmap; HEAP MiB are held besides. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdint.h>
#include <pthread.h>
#include <sys/mman.h>
static volatile char*m;static size_t z;
static void*rd(void*p){uint64_t x=(uintptr_t)p*77+5;volatile unsigned s=0;
	for(;;){x=x*6364136223846793005ULL+1442695040888963407ULL;size_t o=(x>>20)%(z-65536);for(int i=0;i<65536;i+=4096)s+=m[o+i];}return 0;}
int main(int c,char**v){
	int mb=atoi(v[1]),n=atoi(v[2]),h=c>3?atoi(v[3]):0;pthread_t t;
	char*b=malloc(1<<20);memset(b,7,1<<20);
	if(h){char*q=malloc((size_t)h<<20);if(q)memset(q,3,(size_t)h<<20);}
	int f=open("/data/index",O_RDWR|O_CREAT|O_TRUNC,0600);if(f<0){perror("index");return 1;}
	for(int i=0;i<mb;i++){if(write(f,b,1<<20)<0){perror("write");return 1;}if(i%16==15)fdatasync(f);}
	fdatasync(f);z=(size_t)mb<<20;
	m=mmap(0,z,PROT_READ,MAP_SHARED,f,0);if(m==MAP_FAILED)return 1;
	for(long i=0;i<n;i++)pthread_create(&t,0,rd,(void*)i);
	sleep(1);puts("ready");fflush(stdout);for(;;)pause();
}
