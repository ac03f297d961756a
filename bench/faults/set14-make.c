/* make -jN: compilers as new processes, 100 to 400 ms of CPU and an object file each. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdint.h>
#include <time.h>
#include <sys/wait.h>
static double cpu(void){struct timespec t;clock_gettime(CLOCK_PROCESS_CPUTIME_ID,&t);return t.tv_sec+t.tv_nsec/1e9;}
static int cc1(int k){
	double e=0.1+(k*37%30)/100.0;size_t z=16u<<20;char*m=malloc(z);char f[64];volatile uint64_t x=k;
	if(!m)return 1;
	while(cpu()<e)for(int i=0;i<4096;i++){x=x*6364136223846793005ULL+1;m[(x>>20)%z]=x;}
	snprintf(f,sizeof f,"/data/o%d.o",k%200);
	int d=open(f,O_WRONLY|O_CREAT|O_TRUNC,0600);
	if(d>=0){if(write(d,m,200000)<0)return 1;close(d);}
	return 0;
}
int main(int c,char**v){
	if(c>2&&!strcmp(v[1],"cc1"))return cc1(atoi(v[2]));
	int n=c>1?atoi(v[1]):8,run=0;char a[16];
	puts("ready");fflush(stdout);
	for(int k=0;;k++){
		snprintf(a,sizeof a,"%d",k);
		pid_t p=fork();
		if(!p){execl("/proc/self/exe","cc1","cc1",a,(char*)0);_exit(127);}
		if(p>0)run++;
		if(run>=n&&wait(0)>0)run--;
	}
}
