package dashboard

import "encoding/json"

// quoted returns a text as a JavaScript literal.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // never fails for a string
		panic(err)
	}
	return string(b)
}
