/* A resolver with one thread that waits MS for its upstream; clients send RATE queries a second: the receive buffer overflows. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/socket.h>
#include <netinet/in.h>
int main(int c,char**v){
	int ms=atoi(v[1]),rate=atoi(v[2]);
	struct sockaddr_in a={.sin_family=AF_INET,.sin_port=htons(5353)},from;a.sin_addr.s_addr=htonl(INADDR_LOOPBACK);
	int l=socket(AF_INET,SOCK_DGRAM,0);if(bind(l,(void*)&a,sizeof a)){perror("bind");return 1;}
	for(int w=0;w<4;w++)if(!fork()){
		int s=socket(AF_INET,SOCK_DGRAM,0);char q[80]={1,2,1,0,0,1},b[512];
		close(l);
		for(;;){
			for(int i=0;i<rate/400;i++)sendto(s,q,60,0,(void*)&a,sizeof a);
			while(recv(s,b,sizeof b,MSG_DONTWAIT)>0);
			usleep(10000);}
	}
	sleep(1);puts("ready");fflush(stdout);
	for(;;){
		char b[512];socklen_t z=sizeof from;volatile unsigned x=0;
		ssize_t r=recvfrom(l,b,sizeof b,0,(void*)&from,&z);if(r<0)continue;
		for(int i=0;i<100000;i++)x+=i;
		usleep(ms*1000);
		sendto(l,b,r,MSG_DONTWAIT,(void*)&from,z);
	}
}
