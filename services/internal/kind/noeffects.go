package kind

var noEffects = []NoEffect{
	{"ServiceEntry", "resolution=DYNAMIC_DNS", "requests to the hosts get 503; name them one by one with resolution DNS"},
}
