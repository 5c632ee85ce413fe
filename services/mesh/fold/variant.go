//go:build !mutants

package fold

// variant has all rules in this build.
type variant struct{}

func variantOf(Judge) variant { return variant{} }

func (variant) has(string) bool { return true }
