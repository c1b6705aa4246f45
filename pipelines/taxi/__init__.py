"""Chicago taxi rides: will the passenger tip more than a fifth of the fare?"""
