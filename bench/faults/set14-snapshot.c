/* A key-value store: HEAP MiB, every 3 s a fork writes a snapshot while clients change all pages (copy on write). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <time.h>
#include <sys/wait.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec/1e9;}
int main(int c,char**v){
	size_t z=(size_t)atoi(v[1])<<20;char*h=malloc(z);int first=1;if(!h)return 1;memset(h,1,z);
	for(;;){
		double t0=now();
		pid_t p=fork();
		if(!p){
			int f=open("/proc/self/oom_score_adj",O_WRONLY);
			if(f>=0){if(write(f,"1000",4)<0)perror("adj");close(f);}
			f=open("/data/temp.rdb",O_WRONLY|O_CREAT|O_TRUNC,0600);
			for(size_t o=0;o<z;o+=1<<20){if(write(f,h+o,1<<20)<0)_exit(1);usleep(5000);}
			fdatasync(f);_exit(0);
		}
		for(size_t o=0;o<z;o+=4096){h[o]++;if(o%(4<<20)==0)usleep(8000);}
		if(first){puts("ready");fflush(stdout);first=0;}
		if(p>0)waitpid(p,0,0);
		double r=t0+3-now();if(r>0)usleep(r*1e6);
	}
}
