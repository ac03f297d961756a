#!/bin/sh
rm -rf /var/tmp/hf7-export
