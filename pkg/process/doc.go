// Package process runs the parts of one process: it starts them in order, holds
// the leader lease, serves HTTP, turns signals into a graceful stop and leaves a
// termination message. Functions and checks come in, one cause of the end goes
// out. It never knows what a part does, and never exits the process by itself
// except through the function it was given.
package process
