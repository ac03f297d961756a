/* A master with workers; a worker's heap grows by each request until the OOM killer ends it, and the master starts another. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/wait.h>
int main(int c,char**v){
	int mb=c>1?atoi(v[1]):6,first=1;
	for(;;){
		pid_t p=fork();
		if(!p){
			int f=open("/proc/self/oom_score_adj",O_WRONLY);
			if(f>=0){if(write(f,"900",3)<0)perror("adj");close(f);}
			for(int i=0;i<1000/mb;i++){char*m=malloc((size_t)mb<<20);if(!m)break;memset(m,i+1,(size_t)mb<<20);usleep(25000);}
			_exit(1);
		}
		if(first){sleep(1);puts("ready");fflush(stdout);first=0;}
		if(p>0)waitpid(p,0,0);
		usleep(200000);
	}
}
