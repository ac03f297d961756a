/* Sequential scans of a table of MB MiB without index by N sessions, past the page cache (O_DIRECT where there is). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <pthread.h>
static int mb;
static void*scan(void*p){
	int f=open("/data/table",O_RDONLY|O_DIRECT);if(f<0)f=open("/data/table",O_RDONLY);
	char*b;if(f<0||posix_memalign((void**)&b,4096,1<<20))return 0;
	volatile unsigned s=0;
	for(long o=(long)p*97%mb;;o=(o+1)%mb){ssize_t r=pread(f,b,1<<20,(off_t)o<<20);if(r<=0){usleep(1000);continue;}for(int i=0;i<r;i+=8192)s+=b[i];}
}
int main(int c,char**v){
	mb=atoi(v[1]);int n=atoi(v[2]);pthread_t t;char*b;
	if(posix_memalign((void**)&b,4096,1<<20))return 1;
	memset(b,5,1<<20);
	int f=open("/data/table",O_WRONLY|O_CREAT|O_TRUNC|O_DIRECT,0600);if(f<0)f=open("/data/table",O_WRONLY|O_CREAT|O_TRUNC,0600);
	if(f<0){perror("table");return 1;}
	for(int i=0;i<mb;i++)if(write(f,b,1<<20)<0){perror("write");return 1;}
	fdatasync(f);close(f);
	for(long i=0;i<n;i++)pthread_create(&t,0,scan,(void*)i);
	puts("ready");fflush(stdout);for(;;)pause();
}
