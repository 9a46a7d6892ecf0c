// Package api defines what a keeper says of what it keeps, and the policy that it is given. Packages keeper and server
// give these types their own names. In JSON they are what docs/wire.md and docs/keeper.md say. The package needs no driver.
package api
