/* A service whose log file was deleted by a rotation without a signal: it still writes KB KiB a second into the open file, MAX MiB at most. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
int main(int c,char**v){
	long kb=atol(v[1]),max=atol(v[2])<<20,t=0;size_t z=kb*1024/10;char*b=malloc(z);memset(b,'l',z);
	for(size_t i=99;i<z;i+=100)b[i]='\n';
	int f=open("/data/service.log",O_WRONLY|O_CREAT|O_APPEND,0600);if(f<0){perror("log");return 1;}
	if(write(f,b,z)<0)return 1;
	unlink("/data/service.log");
	puts("ready");fflush(stdout);
	for(;;){if(t<max){ssize_t r=write(f,b,z);if(r>0)t+=r;}usleep(100000);}
}
