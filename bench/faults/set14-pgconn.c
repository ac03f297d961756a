/* A database with MAX connections, all taken by idle transactions of an application that does not give them back; further clients are refused. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <sys/wait.h>
int main(int c,char**v){
	int max=atoi(v[1]),one=1,n=0;struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(5432)};a.sin_addr.s_addr=htonl(INADDR_LOOPBACK);
	signal(SIGPIPE,SIG_IGN);
	int l=socket(AF_INET,SOCK_STREAM,0);setsockopt(l,SOL_SOCKET,SO_REUSEADDR,&one,sizeof one);
	if(bind(l,(void*)&a,sizeof a)||listen(l,128)){perror("listen");return 1;}
	if(!fork()){	/* the application: takes connections, keeps them in a transaction */
		close(l);char b[64];
		for(int k=0;;k++){
			int s=socket(AF_INET,SOCK_STREAM,0);
			if(s<0||connect(s,(void*)&a,sizeof a)){if(s>=0)close(s);usleep(100000);continue;}
			ssize_t r=recv(s,b,sizeof b,0);
			if(r>0&&b[0]=='R'){if(send(s,"BEGIN;",6,0)<0)close(s);usleep(10000);continue;}
			close(s);usleep(20000);}
	}
	for(;;){
		int s=accept(l,0,0);if(s<0){usleep(1000);continue;}
		if(n>=max){
			if(send(s,"FATAL: sorry, too many clients already\n",39,0)<0){}
			close(s);continue;}
		if(!fork()){	/* one backend process for a connection */
			close(l);char b[64],*m=malloc(1<<20);if(m)memset(m,1,1<<20);
			if(send(s,"R",1,0)<0)_exit(1);
			while(recv(s,b,sizeof b,0)>0);
			for(;;)pause();}
		close(s);if(++n==max){puts("ready");fflush(stdout);}
	}
}
