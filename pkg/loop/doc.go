// Package loop runs one function for each key of a queue: equal keys merge, one
// worker holds a key, and the function's verdict says when the key comes again.
// Keys go in, calls of the function come out. It knows nothing of what a key
// means, and a worker never waits: waiting is the queue's work.
package loop
