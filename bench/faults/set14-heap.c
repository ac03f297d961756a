/* A session cache that never evicts: START MiB, then RATE MiB a second up to MAX MiB, with some work for requests. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void grow(int kb){for(int i=0;i<kb;i+=16){char*m=malloc(16384);if(m)memset(m,i|1,16384);}}
int main(int c,char**v){
	int s=atoi(v[1]),r=atoi(v[2]),m=atoi(v[3]);volatile unsigned x=0;
	grow(s*1024);puts("ready");fflush(stdout);
	for(double t=s;;){
		if(t<m){grow(r*1024/10);t+=r/10.0;}
		for(int i=0;i<8000000;i++)x+=i;
		usleep(90000);}
}
