package dashboard

import "encoding/json"

// quoted is a text as JavaScript has it.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // a string can always be
		panic(err)
	}
	return string(b)
}
