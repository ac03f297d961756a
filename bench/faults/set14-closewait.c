/* A server that does not close connections which its clients have closed: CLOSE_WAIT up to 1024 descriptors. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <netinet/in.h>
int main(void){
	struct rlimit r={1024,1024};struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(8080)};a.sin_addr.s_addr=htonl(INADDR_LOOPBACK);
	signal(SIGPIPE,SIG_IGN);signal(SIGCHLD,SIG_IGN);
	int one=1,l=socket(AF_INET,SOCK_STREAM,0);setsockopt(l,SOL_SOCKET,SO_REUSEADDR,&one,sizeof one);
	if(bind(l,(void*)&a,sizeof a)||listen(l,128)){perror("listen");return 1;}
	if(!fork()){	/* the clients: 300 requests a second at first, later 20 */
		close(l);
		for(int i=0;;i++){
			int s=socket(AF_INET,SOCK_STREAM,0);struct timeval tv={1,0};char b[64];
			setsockopt(s,SOL_SOCKET,SO_RCVTIMEO,&tv,sizeof tv);setsockopt(s,SOL_SOCKET,SO_SNDTIMEO,&tv,sizeof tv);
			if(!connect(s,(void*)&a,sizeof a)&&send(s,"GET /\n",6,0)==6)recv(s,b,sizeof b,0);
			close(s);usleep(i<900?3000:50000);}
	}
	setrlimit(RLIMIT_NOFILE,&r);
	for(int n=0;;){
		int s=accept(l,0,0);char b[64];volatile unsigned x=0;
		if(s<0){fprintf(stderr,"accept: %s\n",strerror(errno));usleep(100000);continue;}
		if(recv(s,b,sizeof b,0)>0&&send(s,"200 OK\n",7,0)<0)n+=0;
		for(int i=0;i<200000;i++)x+=i;
		if(++n==950){puts("ready");fflush(stdout);}
	}
}
