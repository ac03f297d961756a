/* A service that makes a new executor for each request and never shuts it down: idle threads up to the pids limit. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
static pthread_mutex_t m=PTHREAD_MUTEX_INITIALIZER;static pthread_cond_t cv=PTHREAD_COND_INITIALIZER;
static void*idle(void*p){char s[8192];memset(s,1,sizeof s);pthread_mutex_lock(&m);for(;;)pthread_cond_wait(&cv,&m);return p;}
int main(int c,char**v){
	int fast=atoi(v[1]);pthread_attr_t a;pthread_attr_init(&a);pthread_attr_setstacksize(&a,262144);volatile unsigned x=0;
	for(int n=0;;n++){
		for(int k=0;k<4;k++){pthread_t t;int e=pthread_create(&t,&a,idle,0);
			if(e)fprintf(stderr,"unable to create native thread: %s\n",strerror(e));}
		if(n*4>=fast&&n*4<fast+4){puts("ready");fflush(stdout);}
		for(int i=0;i<2000000;i++)x+=i;
		usleep(n*4<fast?10000:300000);}
}
