//go:build !amd64

package main

import "errors"

func made() error { return errors.New("only for amd64") }
