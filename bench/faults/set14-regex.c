/* A web worker that matches (a+)+b against a long run of a: exponential backtracking; a second thread serves the health page. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
static char s[64];
static int group(const char*p){		/* (a+)+b */
	int n=0;while(p[n]=='a')n++;
	for(int k=n;k>0;k--){if(p[k]=='b')return 1;if(group(p+k))return 1;}
	return 0;
}
static void*health(void*p){volatile unsigned x=0;for(;;){for(int i=0;i<200000;i++)x+=i;usleep(20000);}return p;}
int main(void){
	pthread_t t;memset(s,'a',50);pthread_create(&t,0,health,0);
	puts("ready");fflush(stdout);
	for(volatile int r=0;;)r+=group(s);
}
