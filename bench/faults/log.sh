#!/bin/sh
# Writes RATE lines of about 200 bytes a second to its standard output, which the engine
# parses and stores.
line=$(printf 'the request was handled as many others before it %.0s' 1 2 3 4)
echo ready
sleep 2 # the line is found before others follow
while :; do
	i=0
	while [ "$i" -lt "$(($1 / 10))" ]; do
		echo "$line"
		i=$((i + 1))
	done
	usleep 100000
done
