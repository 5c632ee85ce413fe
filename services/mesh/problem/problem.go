package problem

// Problem is something wrong in an object.
type Problem struct {
	Field   string // path of the field, as the user writes it
	Reason  string
	Advice  string // what to do
	Warning bool   // the object counts all the same
	// NoEffect says of a warning that the field does nothing in this build.
	NoEffect bool
}
