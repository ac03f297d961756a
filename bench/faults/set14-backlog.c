/* One worker with a queue of BACKLOG, MS for a request; CLIENTS come at the same time every PERIOD ms. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <sys/socket.h>
#include <netinet/in.h>
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec/1e9;}
int main(int c,char**v){
	int bl=atoi(v[1]),ms=atoi(v[2]),n=atoi(v[3]),per=atoi(v[4]),one=1;
	struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(9000)};a.sin_addr.s_addr=htonl(INADDR_LOOPBACK);
	signal(SIGPIPE,SIG_IGN);
	int l=socket(AF_INET,SOCK_STREAM,0);setsockopt(l,SOL_SOCKET,SO_REUSEADDR,&one,sizeof one);
	if(bind(l,(void*)&a,sizeof a)||listen(l,bl)){perror("listen");return 1;}
	if(!fork()){
		close(l);struct pollfd p[512];if(n>512)n=512;
		for(;;){
			double e=now()+per/1e3;
			for(int i=0;i<n;i++){p[i].fd=socket(AF_INET,SOCK_STREAM|SOCK_NONBLOCK,0);p[i].events=POLLOUT;
				connect(p[i].fd,(void*)&a,sizeof a);}
			for(int i=0;i<n;i++)send(p[i].fd,"GET /\n",6,MSG_DONTWAIT);
			double r=e-now();if(r>0)usleep(r*1e6);
			for(int i=0;i<n;i++)close(p[i].fd);
		}
	}
	puts("ready");fflush(stdout);
	for(;;){
		int s=accept(l,0,0);char b[64];volatile unsigned x=0;if(s<0){usleep(1000);continue;}
		recv(s,b,sizeof b,MSG_DONTWAIT);for(int i=0;i<300000;i++)x+=i;
		usleep(ms*1000);
		send(s,"502\n",4,MSG_DONTWAIT);close(s);
	}
}
