/* A supervisor without backoff: N programs that fail in their start and are started again at once. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
int main(int c,char**v){
	if(c>1&&!strcmp(v[1],"app")){
		size_t z=2<<20;char*m=malloc(z);volatile unsigned x=0;
		if(m)memset(m,1,z);
		for(int i=0;i<1500000;i++)x+=i;
		if(access("/etc/app/config.json",R_OK))return 1;
		return 0;
	}
	int n=c>1?atoi(v[1]):3,run=0;
	puts("ready");fflush(stdout);
	for(;;){
		while(run<n){pid_t p=fork();if(!p){execl("/proc/self/exe","app","app",(char*)0);_exit(127);}if(p<0){usleep(1000);break;}run++;}
		if(wait(0)>0)run--;
	}
}
