export CATALINA_HOME=/usr/share/tomcat10 CATALINA_BASE=$DIR
version() { catalina.sh version | sed -n 's/^Server version: *//p'; }
prepare() {
  mkdir -p "$DIR"/{conf,logs,temp,work,webapps/ROOT/WEB-INF}
  echo pong >"$DIR/webapps/ROOT/index.html"
  cat >"$DIR/conf/server.xml" <<-END
	<Server port="-1"><Service name="Catalina">
	  <Connector address="$HOST" port="$PORT" protocol="HTTP/1.1"/>
	  <Engine name="Catalina" defaultHost="localhost"><Host name="localhost" appBase="webapps"/></Engine>
	</Service></Server>
	END
  cat >"$DIR/webapps/ROOT/WEB-INF/web.xml" <<-END
	<web-app xmlns="https://jakarta.ee/xml/ns/jakartaee" version="5.0">
	  <servlet><servlet-name>default</servlet-name><servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class></servlet>
	  <servlet-mapping><servlet-name>default</servlet-name><url-pattern>/</url-pattern></servlet-mapping>
	  <welcome-file-list><welcome-file>index.html</welcome-file></welcome-file-list>
	</web-app>
	END
}
start() { run catalina.sh run; }
