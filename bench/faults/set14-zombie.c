/* The first process runs check scripts and never waits for them: zombies up to the pids limit of the container. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>
int main(int c,char**v){
	int fast=c>1?atoi(v[1]):400;volatile unsigned x=0;
	for(int n=0;;n++){
		pid_t p=fork();
		if(!p)_exit(0);
		if(p<0&&n%20==0)fprintf(stderr,"fork: %s\n",strerror(errno));
		if(n==fast){puts("ready");fflush(stdout);}
		for(int i=0;i<300000;i++)x+=i;
		usleep(n<fast?2000:100000);}
}
