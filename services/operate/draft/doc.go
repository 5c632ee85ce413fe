// Package draft judges changes of objects that are not on the log: it reads documents, has a fold
// apply their objects, and works out what that would do to the mesh. It appends nothing and opens
// no file. `meshlog apply` appends what it has judged, and `meshlog what-if` and the console show
// it.
package draft
